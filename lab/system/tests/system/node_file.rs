//! node_file
