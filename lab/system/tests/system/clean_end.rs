//! clean_end
