"""Updates that somebody captured: what their files tell, what must be inferred, and the attack on them."""
