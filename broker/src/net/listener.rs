//! Listening sockets: binding, accepting, connection limits, socket options.
//!
//! Binding is a step of its own, so that a taken port is found before the data directory is touched.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::connection::{Connection, Ended, Shared};
use super::{Budget, FileReads, Peer, Phase, Service, Settings, Shutdown};

/// Unanswered keep-alive probes before a connection is reset.
const KEEPALIVE_PROBES: u32 = 6;
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// Another process has the port.
    #[error("cannot listen on {address}: the port is in use by another process")]
    InUse {
        /// What was asked for.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The system's words.
        source: io::Error,
    },
}

/// A bound socket that accepts nothing yet.
#[derive(Debug)]
pub struct Bound {
    socket: StdListener,
    address: SocketAddr,
}

impl Bound {
    /// Where it listens; the port is the real one, also if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds and listens; nobody is answered before [`Listener::serve`].
pub fn bind(address: SocketAddr, settings: &Settings) -> Result<Bound, ListenerError> {
    let attempt = || -> io::Result<Bound> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // "::" serves IPv4 too, as Java's sockets do.
            socket.set_only_v6(false)?;
        }
        if let Some(bytes) = settings.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = settings.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(settings.backlog).unwrap_or(i32::MAX))?;
        let socket = StdListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Bound { socket, address })
    };
    attempt().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenerError::InUse { address },
        _ => ListenerError::Bind { address, source },
    })
}

/// Accepts connections for a service.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    name: Arc<str>,
    shared: Shared,
    slots: Arc<Semaphore>,
    per_ip: Arc<Mutex<HashMap<IpAddr, usize>>>,
    ids: AtomicU64,
}

impl Listener {
    /// A listener over a bound socket. Must be called inside a runtime.
    pub fn new(
        bound: Bound,
        name: &str,
        service: Arc<dyn Service>,
        reads: Arc<dyn FileReads>,
        settings: Settings,
        shutdown: Shutdown,
    ) -> io::Result<Self> {
        let budget = Budget::new(settings.queued_request_bytes);
        let slots = settings.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        Ok(Self {
            socket: TcpListener::from_std(bound.socket)?,
            name: name.into(),
            shared: Shared { service, reads, settings: Arc::new(settings), budget, shutdown },
            slots: Arc::new(Semaphore::new(slots)),
            per_ip: Arc::default(),
            ids: AtomicU64::new(1),
        })
    }

    /// Serves until the process drains; returns when every connection has ended.
    pub async fn serve(self) {
        let mut connections = JoinSet::new();
        let shutdown = self.shared.shutdown.clone();
        loop {
            tokio::select! {
                biased;
                () = shutdown.reached(Phase::Draining) => break,
                // Ended connections are reaped as they end.
                Some(_) = connections.join_next() => {}
                accepted = self.accept() => {
                    if let Some((stream, peer, guard)) = accepted {
                        let connection = Connection::new(stream, peer, self.shared.clone());
                        connections.spawn(serve_one(connection, guard));
                    }
                }
            }
        }
        drop(self.socket);
        while connections.join_next().await.is_some() {}
    }

    /// One connection, or `None` if it was turned away.
    async fn accept(&self) -> Option<(TcpStream, Arc<Peer>, Slot)> {
        // At the limit the system's backlog holds newcomers, as in Kafka.
        let permit = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        let (stream, address) = match self.socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(listener = %self.name, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return None;
            }
        };
        let slot = self.slot(address.ip(), permit)?;
        if let Err(error) = self.prepare(&stream) {
            debug!(%address, %error, "connection lost while it was accepted");
            return None;
        }
        let local = stream.local_addr().ok()?;
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        Some((stream, Arc::new(Peer { id, address, local, listener: Arc::clone(&self.name) }), slot))
    }

    fn slot(&self, ip: IpAddr, permit: OwnedSemaphorePermit) -> Option<Slot> {
        let limit = self.shared.settings.max_connections_per_ip;
        let mut per_ip = self.per_ip.lock();
        let count = per_ip.entry(ip).or_default();
        if *count >= limit {
            drop(per_ip);
            info!(%ip, limit, "too many connections from this address (max.connections.per.ip)");
            return None;
        }
        *count += 1;
        Some(Slot { ip, per_ip: Arc::clone(&self.per_ip), _permit: permit })
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let settings = &self.shared.settings;
        let keepalive = TcpKeepalive::new()
            .with_time(settings.keepalive_idle)
            .with_interval(settings.keepalive_interval)
            .with_retries(KEEPALIVE_PROBES);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)
    }
}

/// A connection's place among the limits; given back on drop.
struct Slot {
    ip: IpAddr,
    per_ip: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut per_ip = self.per_ip.lock();
        if let Some(count) = per_ip.get_mut(&self.ip) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                per_ip.remove(&self.ip);
            }
        }
    }
}

async fn serve_one(connection: Connection, slot: Slot) {
    let peer = connection.peer();
    debug!(%peer, "connected");
    match connection.run().await {
        Ended::Orderly => debug!(%peer, "disconnected"),
        ended @ (Ended::Idle | Ended::Write(_)) => info!(%peer, reason = %ended, "closing connection"),
        Ended::Frame(super::FrameError::Socket(error)) => debug!(%peer, %error, "connection lost"),
        ended => warn!(%peer, reason = %ended, "closing connection"),
    }
    drop(slot);
}
