//! Reads of log files for responses, on the engine's I/O threads.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use kaas_engine::Engine;
use kaas_substrate::File;

use crate::net::{BoxFuture, FileReads};

/// Reads on the threads of an engine.
#[derive(Debug, Clone)]
pub struct EngineReads {
    engine: Engine,
}

impl EngineReads {
    /// Reads on the threads of `engine`.
    pub fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

impl FileReads for EngineReads {
    fn read(&self, file: Arc<dyn File>, offset: u64, length: usize) -> BoxFuture<io::Result<Bytes>> {
        let read = move || {
            let mut buffer = vec![0; length];
            match file.read_at(&mut buffer, offset) {
                Ok(read) if read == length => Ok(Bytes::from(buffer)),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(io::Error::other(error)),
            }
        };
        let ticket = self.engine.io().run(read);
        Box::pin(async move {
            match ticket {
                Ok(ticket) => ticket.await.map_err(io::Error::other)?,
                Err(saturated) => Err(io::Error::other(saturated)),
            }
        })
    }
}
