"""What every preparation command shares. Start reading at `runner.py`, then `plan.py`: what a command tells it."""
