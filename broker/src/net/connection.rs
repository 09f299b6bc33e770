//! One connection: reads frames, starts requests, writes answers in the order of the requests.
//!
//! One task, one state machine. Staged requests (Produce) are started one after the other while earlier staged
//! ones wait for their commit; any other request starts when everything before it is answered, and nothing
//! behind it starts before it is answered. Frames are read on meanwhile, up to the bounds of [`Settings`].
//!
//! A peer that closes its side is served what it sent: staged requests are still carried out. Only an answer
//! that has no other effect is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, pending};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kaas_protocol::Segments;
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{Frame, FrameError, FrameReader};
use super::shutdown::{Observer, Phase, Shutdown};
use super::write::{FileReads, write_responses};
use super::{BoxFuture, Budget, Call, Peer, Reply, Reservation, Service, Settings};

/// Answers written with one call.
const MAX_REPLIES_AT_ONCE: usize = 32;

/// What all connections of a server share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub service: Arc<dyn Service>,
    pub reads: Arc<dyn FileReads>,
    pub settings: Arc<Settings>,
    pub budget: Budget,
    pub shutdown: Shutdown,
}

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The peer closed it, or the process stops.
    Orderly,
    /// No request for too long.
    Idle,
    /// The peer sent what is no request.
    Frame(FrameError),
    /// The frame made no progress.
    ReceiveStalled,
    /// A request was malformed, or must be answered by closing.
    Refused(String),
    /// A response could not be written.
    Write(io::Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orderly => f.write_str("closed"),
            Self::Idle => f.write_str("idle for longer than connections.max.idle.ms"),
            Self::Frame(error) => error.fmt(f),
            Self::ReceiveStalled => f.write_str("a request stopped arriving"),
            Self::Refused(reason) => f.write_str(reason),
            Self::Write(error) if error.kind() == io::ErrorKind::TimedOut => {
                f.write_str("the peer does not read its responses")
            }
            Self::Write(error) => write!(f, "could not send a response: {error}"),
        }
    }
}

/// Charges of a request; given back when it is answered.
struct Charge {
    bytes: usize,
    _reservation: Reservation,
}

/// A started request that is not answered.
struct Started {
    reply: BoxFuture<Reply>,
    alone: bool,
    droppable: bool,
    charge: Charge,
}

/// A staged request in its first step.
struct Staging {
    step: BoxFuture<BoxFuture<Reply>>,
    charge: Charge,
}

pub(super) struct Connection {
    stream: TcpStream,
    peer: Arc<Peer>,
    shared: Shared,
    reader: FrameReader,
    /// Read, not started.
    queued: VecDeque<Frame>,
    staging: Option<Staging>,
    started: VecDeque<Started>,
    in_flight_bytes: usize,
    /// The peer has closed its side, or we read no more.
    closed_for_reading: bool,
    last_request: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

enum Event {
    Frame(Result<Frame, FrameError>),
    Staged(BoxFuture<Reply>),
    Reply(Reply),
    Timer,
    Phase,
}

impl Connection {
    pub fn new(stream: TcpStream, peer: Arc<Peer>, shared: Shared) -> Self {
        let reader = FrameReader::new(&shared.settings, shared.budget.clone());
        Self {
            stream,
            peer,
            shared,
            reader,
            queued: VecDeque::new(),
            staging: None,
            started: VecDeque::new(),
            in_flight_bytes: 0,
            closed_for_reading: false,
            last_request: Instant::now(),
            timer: None,
        }
    }

    /// The other end.
    pub fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }

    /// Serves the connection to its end.
    pub async fn run(mut self) -> Ended {
        let mut phase = self.shared.shutdown.observe();
        loop {
            // Looked at once a round: a phase that begins while an answer is written must not be taken for one that
            // this connection has heard of.
            let draining = phase.phase() >= Phase::Draining;
            self.closed_for_reading |= draining;
            self.start();
            if self.closed_for_reading {
                if self.drop_what_nobody_reads() {
                    continue;
                }
                if self.is_idle() {
                    return Ended::Orderly;
                }
            }
            match self.event(&mut phase, draining).await {
                Event::Frame(Ok(frame)) => self.accept(frame),
                Event::Frame(Err(FrameError::Closed)) => self.closed_for_reading = true,
                Event::Frame(Err(error)) => return Ended::Frame(error),
                Event::Staged(reply) => {
                    if let Some(Staging { charge, .. }) = self.staging.take() {
                        self.started.push_back(Started { reply, alone: false, droppable: false, charge });
                    }
                }
                Event::Reply(reply) => {
                    if let Err(ended) = self.answer(reply).await {
                        return ended;
                    }
                }
                Event::Timer => match self.deadline() {
                    Some(deadline) if deadline > Instant::now() => self.timer = None,
                    Some(_) if self.reader.is_inside_frame() => return Ended::ReceiveStalled,
                    Some(_) => return Ended::Idle,
                    None => self.timer = None,
                },
                Event::Phase if phase.phase() >= Phase::Stopped => return Ended::Orderly,
                Event::Phase => {}
            }
        }
    }

    fn accept(&mut self, frame: Frame) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(frame.bytes.len());
        if self.staging.is_some() && self.shared.service.may_stage(&frame.bytes) {
            self.shared.service.foresee(&frame.bytes);
        }
        self.queued.push_back(frame);
        self.last_request = Instant::now();
    }

    fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.staging.is_none() && self.started.is_empty()
    }

    fn may_read(&self) -> bool {
        let requests = self.queued.len() + self.started.len() + usize::from(self.staging.is_some());
        !self.closed_for_reading
            && requests < self.shared.settings.in_flight_requests.max(1)
            && (requests == 0 || self.in_flight_bytes < self.shared.settings.in_flight_bytes)
    }

    /// Starts what may be started.
    fn start(&mut self) {
        while let Some(frame) = self.queued.front() {
            let may_stage = self.shared.service.may_stage(&frame.bytes);
            let free = if may_stage {
                self.staging.is_none() && !self.started.iter().any(|request| request.alone)
            } else {
                self.staging.is_none() && self.started.is_empty()
            };
            if !free {
                return;
            }
            let Some(Frame { bytes, reservation }) = self.queued.pop_front() else { return };
            let charge = Charge { bytes: bytes.len(), _reservation: reservation };
            match self.shared.service.call(&self.peer, bytes) {
                Call::Staged(step) => self.staging = Some(Staging { step, charge }),
                Call::Alone { reply, droppable } => {
                    self.started.push_back(Started { reply, alone: true, droppable, charge });
                }
                Call::Done(reply) => self.started.push_back(Started {
                    reply: Box::pin(std::future::ready(reply)),
                    alone: !may_stage,
                    droppable: false,
                    charge,
                }),
            }
        }
    }

    /// Once the peer is gone, parked reads have no purpose; true if there were some.
    fn drop_what_nobody_reads(&mut self) -> bool {
        // While draining the peer is still there; parked reads answer by themselves.
        let gone = self.shared.shutdown.phase() == Phase::Running;
        let before = self.started.len();
        self.started.retain(|request| !(gone && request.droppable));
        self.started.len() < before
    }

    async fn event(&mut self, phase: &mut Observer, draining: bool) -> Event {
        let may_read = self.may_read();
        self.set_timer();
        let next_phase = if draining { Phase::Stopped } else { Phase::Draining };
        let replies = Front(&mut self.started);
        let staging = Step(self.staging.as_mut());
        tokio::select! {
            biased;
            () = phase.reached(next_phase) => Event::Phase,
            reply = replies => Event::Reply(reply),
            reply = staging => Event::Staged(reply),
            frame = self.reader.next(&self.stream), if may_read => Event::Frame(frame),
            () = fires(&mut self.timer) => Event::Timer,
        }
    }

    /// Has the timer fire at the deadline or before. One that fires before is set anew then, so that requests that
    /// come and go do not touch it.
    fn set_timer(&mut self) {
        let Some(deadline) = self.deadline() else { return };
        match &mut self.timer {
            Some(timer) if timer.deadline() > deadline => timer.as_mut().reset(deadline),
            Some(_) => {}
            None => self.timer = Some(Box::pin(sleep_until(deadline))),
        }
    }

    /// When to give the peer up; only while nothing of it is in the works.
    fn deadline(&self) -> Option<Instant> {
        if self.reader.is_inside_frame() && self.may_read() {
            self.reader.last_progress().checked_add(self.shared.settings.receive_stall)
        } else if self.is_idle() {
            self.last_request.checked_add(self.shared.settings.idle)
        } else {
            None
        }
    }

    /// Writes the first answer, and those behind it that are ready too.
    async fn answer(&mut self, first: Reply) -> Result<(), Ended> {
        let mut responses = Vec::new();
        let mut charges = Vec::new();
        let mut refused = None;
        let mut reply = Some(first);
        while let Some(now) = reply.take() {
            if let Some(done) = self.started.pop_front() {
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(done.charge.bytes);
                charges.push(done.charge);
            }
            match now {
                Reply::Send(frame) => responses.push(frame),
                Reply::Silent => {}
                Reply::Close(reason) => {
                    refused = Some(reason);
                    break;
                }
            }
            if responses.len() < MAX_REPLIES_AT_ONCE {
                reply = self.ready_reply().await;
            }
        }
        self.send(responses).await?;
        drop(charges);
        self.last_request = Instant::now();
        refused.map_or(Ok(()), |reason| Err(Ended::Refused(reason)))
    }

    /// The first answer, if it is ready now.
    async fn ready_reply(&mut self) -> Option<Reply> {
        let mut front = Front(&mut self.started);
        std::future::poll_fn(|context| match Pin::new(&mut front).poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    async fn send(&mut self, responses: Vec<Segments>) -> Result<(), Ended> {
        if responses.is_empty() {
            return Ok(());
        }
        let shared = &self.shared;
        tokio::select! {
            biased;
            written = write_responses(&self.stream, &responses, &*shared.reads, &shared.settings) => {
                written.map_err(Ended::Write)
            }
            () = shared.shutdown.reached(Phase::Stopped) => Err(Ended::Orderly),
        }
    }
}

async fn fires(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => pending().await,
    }
}

/// The answer of the first started request.
struct Front<'a>(&'a mut VecDeque<Started>);

impl Future for Front<'_> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        match self.0.front_mut() {
            Some(request) => request.reply.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// The first step of a staged request.
struct Step<'a>(Option<&'a mut Staging>);

impl Future for Step<'_> {
    type Output = BoxFuture<Reply>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BoxFuture<Reply>> {
        match self.0.as_mut() {
            Some(staging) => staging.step.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}
