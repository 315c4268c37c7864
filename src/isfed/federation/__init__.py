"""Who works: the agent, the cloud, and the coordinator among agents that may be absent."""
