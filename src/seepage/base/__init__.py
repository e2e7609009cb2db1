"""Names, storage, networks as functions, linear algebra and worker processes: what every other room stands on."""
