//! AF_XDP: UMEM, rings, and frames of one or more descriptors.
