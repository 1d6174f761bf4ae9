"""Who samples what: requests and the scheduler, the engines, and the team whose agents they speak for."""
