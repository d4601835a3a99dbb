//! What a node decides: rules, services, sessions, routes. Sans-IO.
