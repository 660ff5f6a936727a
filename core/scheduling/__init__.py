"""What schedulers and queues deal with: requests, placements, pools, evictions. Values only, standard library only."""
