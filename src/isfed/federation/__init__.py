"""Who works: the agents, what they are asked, and the border before those that may be absent."""
