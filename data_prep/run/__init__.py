"""What every preparation command shares. Start reading at `runner.py`: a run, its plan and tasks, and how it ends."""
