"""The warm rollout server: one engine that stays up between rounds and takes the next policy by its manifest."""
