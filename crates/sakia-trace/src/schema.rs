//! Numbers of the messages and fields of Perfetto's schema that a trace has. Source: `perfetto_trace.proto`
//! (perfetto.dev/docs/reference/trace-packet-proto); a test decodes by that schema.

/// `Trace`.
pub(crate) mod trace {
    pub(crate) const PACKET: u32 = 1;
}

/// `TracePacket`.
pub(crate) mod packet {
    pub(crate) const CLOCK_SNAPSHOT: u32 = 6;
    pub(crate) const TIMESTAMP: u32 = 8;
    pub(crate) const SEQUENCE: u32 = 10;
    pub(crate) const TRACK_EVENT: u32 = 11;
    pub(crate) const INTERNED_DATA: u32 = 12;
    pub(crate) const SEQUENCE_FLAGS: u32 = 13;
    pub(crate) const TRACE_PACKET_DEFAULTS: u32 = 59;
    pub(crate) const TRACK_DESCRIPTOR: u32 = 60;
    pub(crate) const FIRST_ON_SEQUENCE: u32 = 87;

    /// `SEQ_INCREMENTAL_STATE_CLEARED`.
    pub(crate) const STATE_CLEARED: u64 = 1;
    /// `SEQ_NEEDS_INCREMENTAL_STATE`.
    pub(crate) const NEEDS_STATE: u64 = 2;
}

/// `TracePacketDefaults`.
pub(crate) mod defaults {
    pub(crate) const TIMESTAMP_CLOCK: u32 = 58;
}

/// `ClockSnapshot` and `ClockSnapshot.Clock`.
pub(crate) mod clock {
    pub(crate) const CLOCKS: u32 = 1;
    pub(crate) const ID: u32 = 1;
    pub(crate) const TIMESTAMP: u32 = 2;

    pub(crate) const REALTIME: u64 = 1;
    pub(crate) const MONOTONIC: u64 = 3;
    pub(crate) const BOOTTIME: u64 = 6;
}

/// `TrackDescriptor`, `ProcessDescriptor`, `ThreadDescriptor`.
pub(crate) mod track {
    pub(crate) const UUID: u32 = 1;
    pub(crate) const NAME: u32 = 2;
    pub(crate) const PROCESS: u32 = 3;
    pub(crate) const THREAD: u32 = 4;
    pub(crate) const PARENT: u32 = 5;

    pub(crate) const PROCESS_PID: u32 = 1;
    pub(crate) const PROCESS_NAME: u32 = 6;
    pub(crate) const THREAD_PID: u32 = 1;
    pub(crate) const THREAD_TID: u32 = 2;
    pub(crate) const THREAD_NAME: u32 = 5;
}

/// `TrackEvent` and `DebugAnnotation`.
pub(crate) mod event {
    pub(crate) const CATEGORY_IIDS: u32 = 3;
    pub(crate) const ANNOTATIONS: u32 = 4;
    pub(crate) const TYPE: u32 = 9;
    pub(crate) const NAME_IID: u32 = 10;
    pub(crate) const TRACK: u32 = 11;

    pub(crate) const SLICE_BEGIN: u64 = 1;
    pub(crate) const SLICE_END: u64 = 2;
    pub(crate) const INSTANT: u64 = 3;

    pub(crate) const ANNOTATION_NAME_IID: u32 = 1;
    pub(crate) const ANNOTATION_UINT: u32 = 3;
    pub(crate) const ANNOTATION_INT: u32 = 4;
    pub(crate) const ANNOTATION_STRING_IID: u32 = 17;
}

/// `InternedData`.
pub(crate) mod interned {
    pub(crate) const CATEGORIES: u32 = 1;
    pub(crate) const EVENT_NAMES: u32 = 2;
    pub(crate) const ANNOTATION_NAMES: u32 = 3;
    /// `debug_annotation_string_values`.
    pub(crate) const TEXTS: u32 = 29;
    /// All of them: names by their use, each with the same two fields.
    pub(crate) const FIELDS: [u32; 4] = [CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, TEXTS];
    pub(crate) const IID: u32 = 1;
    pub(crate) const NAME: u32 = 2;
}
