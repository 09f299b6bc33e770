//! Limits of listeners and connections. Kafka's names where Kafka has the knob.

use std::time::Duration;

/// Limits of listeners and connections.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `socket.request.max.bytes`: largest frame, in bytes.
    pub request_max_bytes: usize,
    /// Largest frame of any request but Produce, in bytes; capped by `request_max_bytes`.
    pub other_request_max_bytes: usize,
    /// `queued.max.request.bytes`: bytes of requests that all connections together may hold. A connection
    /// waits before it reads a frame that does not fit.
    pub queued_request_bytes: usize,
    /// Requests that one connection may have read but not answered.
    pub in_flight_requests: usize,
    /// Bytes of requests that one connection may have read but not answered; one frame always fits.
    pub in_flight_bytes: usize,
    /// `connections.max.idle.ms`: a connection without a request for this long is closed.
    pub idle: Duration,
    /// How long a frame may make no progress once its first byte has come.
    pub receive_stall: Duration,
    /// How long a response may make no progress.
    pub send_stall: Duration,
    /// TCP keep-alive: idle time before the first probe.
    pub keepalive_idle: Duration,
    /// TCP keep-alive: time between probes, of which six go unanswered before the connection is reset.
    pub keepalive_interval: Duration,
    /// `socket.listen.backlog.size`.
    pub backlog: u32,
    /// `socket.send.buffer.bytes`; `None` leaves it to the system.
    pub send_buffer_bytes: Option<usize>,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the system.
    pub receive_buffer_bytes: Option<usize>,
    /// Bytes of a file that are read and sent at a time.
    pub file_chunk_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            request_max_bytes: 100 << 20,
            other_request_max_bytes: 4 << 20,
            queued_request_bytes: 64 << 20,
            in_flight_requests: 64,
            in_flight_bytes: 32 << 20,
            idle: Duration::from_secs(600),
            receive_stall: Duration::from_secs(30),
            send_stall: Duration::from_secs(60),
            keepalive_idle: Duration::from_secs(60),
            keepalive_interval: Duration::from_secs(10),
            backlog: 1024,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            file_chunk_bytes: 512 << 10,
        }
    }
}

impl Settings {
    /// Largest frame of the request whose API key is given, in bytes.
    pub fn max_frame_bytes(&self, api_key: i16) -> usize {
        if api_key == 0 {
            self.request_max_bytes
        } else {
            self.request_max_bytes.min(self.other_request_max_bytes)
        }
    }
}
