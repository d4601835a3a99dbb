//! Numbers of the ABI, and the types of its functions: proxy-wasm/spec, abi-versions/v0.2.1.

/// Defines an enum of the ABI that can be parsed from its number.
macro_rules! numbers {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $variant = $value,)* }

        impl $name {
            /// Returns the value with this number.
            #[must_use]
            pub const fn parse(number: u32) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Returns the number.
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    };
}

numbers! {
    /// `proxy_status_t`: result of a host function.
    Status {
        /// Success.
        Ok = 0,
        /// The item does not exist.
        NotFound = 1,
        /// An argument is invalid.
        BadArgument = 2,
        /// A value cannot be serialised.
        SerializationFailure = 3,
        /// The bytes cannot be parsed.
        ParseFailure = 4,
        /// A pointer is outside the module's memory, or there is no memory for the result.
        InvalidMemoryAccess = 6,
        /// The queue is empty.
        Empty = 7,
        /// Another writer has changed the value.
        CasMismatch = 8,
        /// The host failed, or a limit is reached.
        InternalFailure = 10,
        /// The function is not supported.
        Unimplemented = 12,
    }
}

numbers! {
    /// `proxy_action_t`: decision of a callback about the data it was given.
    Action {
        /// The data goes on.
        Continue = 0,
        /// The data is held, until the module resumes the stream or a later callback continues.
        Pause = 1,
    }
}

numbers! {
    /// `proxy_log_level_t`.
    LogLevel {
        /// Every step.
        Trace = 0,
        /// Details for debugging.
        Debug = 1,
        /// Normal events.
        Info = 2,
        /// Unusual events.
        Warn = 3,
        /// A failed operation.
        Error = 4,
        /// Complete failure.
        Critical = 5,
    }
}

numbers! {
    /// `proxy_buffer_type_t`.
    BufferType {
        /// Part of a request's body.
        HttpRequestBody = 0,
        /// Part of a response's body.
        HttpResponseBody = 1,
        /// TCP data of the client.
        DownstreamData = 2,
        /// TCP data of the server.
        UpstreamData = 3,
        /// Body of the response to an HTTP call.
        HttpCallResponseBody = 4,
        /// gRPC message: never available.
        GrpcCallMessage = 5,
        /// The VM's configuration.
        VmConfiguration = 6,
        /// Configuration of the module.
        PluginConfiguration = 7,
        /// Arguments of a foreign callback.
        ForeignFunctionArguments = 8,
    }
}

numbers! {
    /// `proxy_map_type_t`.
    MapType {
        /// Headers of the request.
        HttpRequestHeaders = 0,
        /// Trailers of the request.
        HttpRequestTrailers = 1,
        /// Headers of the response.
        HttpResponseHeaders = 2,
        /// Trailers of the response.
        HttpResponseTrailers = 3,
        /// Never available.
        GrpcCallInitialMetadata = 4,
        /// Never available.
        GrpcCallTrailingMetadata = 5,
        /// Headers of the response to an HTTP call.
        HttpCallResponseHeaders = 6,
        /// Trailers of the response to an HTTP call.
        HttpCallResponseTrailers = 7,
    }
}

numbers! {
    /// `proxy_peer_type_t`: the side that closed a connection.
    PeerType {
        /// Unknown.
        Unknown = 0,
        /// Closed by this host.
        Local = 1,
        /// The peer.
        Remote = 2,
    }
}

numbers! {
    /// `proxy_stream_type_t`.
    StreamType {
        /// HTTP request.
        HttpRequest = 0,
        /// HTTP response.
        HttpResponse = 1,
        /// Connection of the client.
        Downstream = 2,
        /// Connection to the server.
        Upstream = 3,
    }
}

numbers! {
    /// `proxy_metric_type_t`.
    MetricType {
        /// Value that only increases.
        Counter = 0,
        /// Value that increases and decreases.
        Gauge = 1,
        /// Distribution of values.
        Histogram = 2,
    }
}

numbers! {
    /// `wasi_errno_t`, as far as used here.
    Errno {
        /// Success.
        Success = 0,
        /// The file descriptor does not exist.
        Badf = 8,
        /// A pointer is outside the module's memory.
        Fault = 21,
        /// An argument is out of range.
        Inval = 28,
        /// The function is not supported.
        Notsup = 58,
    }
}

/// Import module of the ABI's functions.
pub const ENV: &str = "env";
/// Import module of WASI's functions.
pub const WASI: &str = "wasi_snapshot_preview1";

/// Type of a function: a letter for each parameter and result, `i` for i32 and `l` for i64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Parameters.
    pub parameters: &'static str,
    /// Results.
    pub results: &'static str,
}

/// Function with its name.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Name of the function.
    pub name: &'static str,
    /// Type of the function.
    pub signature: Signature,
}

const fn f(name: &'static str, parameters: &'static str, results: &'static str) -> Function {
    Function { name, signature: Signature { parameters, results } }
}

/// Host functions in [`ENV`].
pub const HOST_FUNCTIONS: [Function; 43] = [
    f("proxy_done", "", "i"),
    f("proxy_set_effective_context", "i", "i"),
    f("proxy_log", "iii", "i"),
    f("proxy_get_log_level", "i", "i"),
    f("proxy_get_current_time_nanoseconds", "i", "i"),
    f("proxy_set_tick_period_milliseconds", "i", "i"),
    f("proxy_set_buffer_bytes", "iiiii", "i"),
    f("proxy_get_buffer_bytes", "iiiii", "i"),
    f("proxy_get_buffer_status", "iii", "i"),
    f("proxy_get_header_map_size", "ii", "i"),
    f("proxy_get_header_map_pairs", "iii", "i"),
    f("proxy_set_header_map_pairs", "iii", "i"),
    f("proxy_get_header_map_value", "iiiii", "i"),
    f("proxy_add_header_map_value", "iiiii", "i"),
    f("proxy_replace_header_map_value", "iiiii", "i"),
    f("proxy_remove_header_map_value", "iii", "i"),
    f("proxy_continue_stream", "i", "i"),
    f("proxy_close_stream", "i", "i"),
    f("proxy_get_status", "iii", "i"),
    f("proxy_send_local_response", "iiiiiiii", "i"),
    f("proxy_http_call", "iiiiiiiiii", "i"),
    f("proxy_grpc_call", "iiiiiiiiiiii", "i"),
    f("proxy_grpc_stream", "iiiiiiiii", "i"),
    f("proxy_grpc_send", "iiii", "i"),
    f("proxy_grpc_cancel", "i", "i"),
    f("proxy_grpc_close", "i", "i"),
    f("proxy_set_shared_data", "iiiii", "i"),
    f("proxy_get_shared_data", "iiiii", "i"),
    f("proxy_register_shared_queue", "iii", "i"),
    f("proxy_resolve_shared_queue", "iiiii", "i"),
    f("proxy_enqueue_shared_queue", "iii", "i"),
    f("proxy_dequeue_shared_queue", "iii", "i"),
    f("proxy_define_metric", "iiii", "i"),
    f("proxy_record_metric", "il", "i"),
    f("proxy_increment_metric", "il", "i"),
    f("proxy_get_metric", "ii", "i"),
    f("proxy_get_property", "iiii", "i"),
    f("proxy_set_property", "iiii", "i"),
    f("proxy_call_foreign_function", "iiiiii", "i"),
    // ABI 0.2.0: modules of that version may import it.
    f("proxy_continue_request", "", "i"),
    f("proxy_continue_response", "", "i"),
    f("proxy_clear_route_cache", "", "i"),
    // Emscripten, which builds filters in C++.
    f("emscripten_notify_memory_growth", "i", ""),
];

/// Implemented functions in [`WASI`].
pub const WASI_FUNCTIONS: [Function; 12] = [
    f("fd_write", "iiii", "i"),
    f("fd_fdstat_get", "ii", "i"),
    f("clock_time_get", "ili", "i"),
    f("clock_res_get", "ii", "i"),
    f("random_get", "ii", "i"),
    f("environ_sizes_get", "ii", "i"),
    f("environ_get", "ii", "i"),
    f("args_sizes_get", "ii", "i"),
    f("args_get", "ii", "i"),
    f("proc_exit", "i", ""),
    f("sched_yield", "", "i"),
    f("poll_oneoff", "iiii", "i"),
];

/// Functions in [`WASI`] that toolchains import and no filter needs, with their result: there are
/// no files except standard output and error, which go to the log.
pub const WASI_REFUSED: [(Function, Errno); 22] = [
    (f("fd_read", "iiii", "i"), Errno::Badf),
    (f("fd_pread", "iiili", "i"), Errno::Badf),
    (f("fd_pwrite", "iiili", "i"), Errno::Badf),
    (f("fd_seek", "ilii", "i"), Errno::Badf),
    (f("fd_tell", "ii", "i"), Errno::Badf),
    (f("fd_close", "i", "i"), Errno::Badf),
    (f("fd_sync", "i", "i"), Errno::Badf),
    (f("fd_fdstat_set_flags", "ii", "i"), Errno::Badf),
    (f("fd_filestat_get", "ii", "i"), Errno::Badf),
    (f("fd_filestat_set_size", "il", "i"), Errno::Badf),
    (f("fd_readdir", "iiili", "i"), Errno::Badf),
    // End of the list of preopened directories.
    (f("fd_prestat_get", "ii", "i"), Errno::Badf),
    (f("fd_prestat_dir_name", "iii", "i"), Errno::Badf),
    (f("path_open", "iiiiillii", "i"), Errno::Notsup),
    (f("path_create_directory", "iii", "i"), Errno::Notsup),
    (f("path_remove_directory", "iii", "i"), Errno::Notsup),
    (f("path_unlink_file", "iii", "i"), Errno::Notsup),
    (f("path_rename", "iiiiii", "i"), Errno::Notsup),
    (f("path_filestat_get", "iiiii", "i"), Errno::Notsup),
    (f("path_readlink", "iiiiii", "i"), Errno::Notsup),
    (f("path_symlink", "iiiii", "i"), Errno::Notsup),
    (f("path_link", "iiiiiii", "i"), Errno::Notsup),
];

/// Callbacks that a module may export.
pub const CALLBACKS: [Function; 30] = [
    f("_initialize", "", ""),
    f("main", "ii", "i"),
    f("_start", "", ""),
    f("proxy_on_memory_allocate", "i", "i"),
    f("malloc", "i", "i"),
    f("proxy_on_context_create", "ii", ""),
    f("proxy_on_done", "i", "i"),
    f("proxy_on_log", "i", ""),
    f("proxy_on_delete", "i", ""),
    f("proxy_on_vm_start", "ii", "i"),
    f("proxy_on_configure", "ii", "i"),
    f("proxy_on_tick", "i", ""),
    f("proxy_on_new_connection", "i", "i"),
    f("proxy_on_downstream_data", "iii", "i"),
    f("proxy_on_downstream_connection_close", "ii", ""),
    f("proxy_on_upstream_data", "iii", "i"),
    f("proxy_on_upstream_connection_close", "ii", ""),
    f("proxy_on_request_headers", "iii", "i"),
    f("proxy_on_request_body", "iii", "i"),
    f("proxy_on_request_trailers", "ii", "i"),
    f("proxy_on_response_headers", "iii", "i"),
    f("proxy_on_response_body", "iii", "i"),
    f("proxy_on_response_trailers", "ii", "i"),
    f("proxy_on_http_call_response", "iiiii", ""),
    f("proxy_on_grpc_receive_initial_metadata", "iii", ""),
    f("proxy_on_grpc_receive", "iii", ""),
    f("proxy_on_grpc_receive_trailing_metadata", "iii", ""),
    f("proxy_on_grpc_close", "iii", ""),
    f("proxy_on_queue_ready", "ii", ""),
    f("proxy_on_foreign_function", "iii", ""),
];

/// Returns the type of the host function with this name, if there is one.
#[must_use]
pub fn host_function(module: &str, name: &str) -> Option<Signature> {
    let of_wasi = || WASI_FUNCTIONS.iter().chain(WASI_REFUSED.iter().map(|(it, _)| it));
    let found = match module {
        ENV => HOST_FUNCTIONS.iter().find(|it| it.name == name),
        WASI => of_wasi().find(|it| it.name == name),
        _ => None,
    };
    found.map(|it| it.signature)
}
