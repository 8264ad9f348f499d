"""Where the endpoints come from: each source tells `PoolState` the whole membership whenever it changes."""
