"""What runs trainings: which runs a reproduction has (plan), which of them are missing and are made (reproduce, launch)."""
