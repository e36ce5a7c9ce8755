"""Stored trajectories of a run as files for other programs: JSON lines, Parquet, AgentNet, and chats for SFT."""
