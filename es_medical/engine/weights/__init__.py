"""What is saved of a training: files of weights and states, what the weights were trained for, their average, random states."""
