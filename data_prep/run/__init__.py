"""Code shared by all preparation commands. Start reading at `runner.py`, then `plan.py`: what a command gives to the runner."""
