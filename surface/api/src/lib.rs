//! The node's HTTP+JSON API: the types, the OpenAPI document, the client.
