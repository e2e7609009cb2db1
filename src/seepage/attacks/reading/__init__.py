"""Reading layers: rows, features of the head, inner layers. Nothing here is an attack."""
