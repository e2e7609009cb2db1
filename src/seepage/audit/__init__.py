"""The stages of an audit: recorded, attacked, measured, summed up. `seepage.audit.run` wires them."""
