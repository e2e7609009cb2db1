"""What a client has, does and sends: types, data, models, local training, defenses and rounds."""
