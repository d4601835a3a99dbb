//! A worker process that runs modules and holds no key.
