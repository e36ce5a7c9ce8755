"""What every process shares: message types, wire format, transport, configuration, errors. Imports no other folder."""
