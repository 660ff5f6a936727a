"""What is found about one job, by where it shows: its pods, its queue, what holds it."""
