//! Documents of the API that show what there is, by subject.

pub(crate) mod backup;
pub(crate) mod modules;
pub(crate) mod node;
pub(crate) mod rules;
pub(crate) mod services;
pub(crate) mod sessions;
pub(crate) mod trust;
