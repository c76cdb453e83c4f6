//! Nothing: the tests decode recordings by the schema that Perfetto publishes.
