"""Run trainings: list the runs of a reproduction (plan), find and make the missing ones (reproduce, launch)."""
