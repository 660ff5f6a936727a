"""What a workload is and needs: training plans, sizes, profiles, checkpoints. Values only, standard library only."""
