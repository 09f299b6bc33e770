//! Decompression and compression of a batch's records, all four codecs of Kafka, behind the feature `compression`.
//!
//! Every decoder is stopped at a bound, so that a small batch cannot ask for a large allocation.

use std::io::{self, Read};

use bytes::Bytes;

use super::error::BatchError;
use super::header::Compression;

/// The records of a batch in plain, at most `max_bytes` of them.
///
/// # Errors
///
/// [`BatchError::DecompressedTooLarge`], [`BatchError::Decompression`], or [`BatchError::CompressionNotBuilt`].
pub fn decompress(compression: Compression, body: &Bytes, max_bytes: usize) -> Result<Bytes, BatchError> {
    if compression == Compression::None {
        return Ok(body.clone());
    }
    let bound = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    let mut plain = Vec::new();
    let read = reader(compression, body, max_bytes)?.take(bound).read_to_end(&mut plain);
    read.map_err(|error| failed(compression, &error))?;
    if plain.len() > max_bytes {
        Err(BatchError::DecompressedTooLarge { max_bytes })
    } else {
        Ok(plain.into())
    }
}

/// The records of a batch in plain, as a stream that holds no more than the codec's own window.
///
/// Not bounded in length; a stream of snappy holds one block, which is an error above `max_block_bytes`.
///
/// # Errors
///
/// [`BatchError::Decompression`] if the codec cannot even start, or [`BatchError::CompressionNotBuilt`].
pub(super) fn reader<'a>(
    compression: Compression,
    body: &'a [u8],
    max_block_bytes: usize,
) -> Result<Box<dyn Read + 'a>, BatchError> {
    match compression {
        Compression::None => Ok(Box::new(body)),
        #[cfg(feature = "compression")]
        _ => codecs::reader(compression, body, max_block_bytes),
        #[cfg(not(feature = "compression"))]
        _ => {
            let _ = max_block_bytes;
            Err(BatchError::CompressionNotBuilt { compression: compression.name() })
        }
    }
}

/// What a codec says, as an error of the batch.
pub(super) fn failed(compression: Compression, error: &io::Error) -> BatchError {
    let too_large = error.get_ref().and_then(|inner| inner.downcast_ref::<BatchError>());
    match too_large {
        Some(error) => error.clone(),
        None => BatchError::Decompression { compression: compression.name(), reason: error.to_string() },
    }
}

/// The opposite, with each codec's default level.
///
/// # Errors
///
/// [`BatchError::Decompression`] if the codec fails, or [`BatchError::CompressionNotBuilt`].
pub fn compress(compression: Compression, body: &[u8]) -> Result<Bytes, BatchError> {
    match compression {
        Compression::None => Ok(Bytes::copy_from_slice(body)),
        #[cfg(feature = "compression")]
        _ => codecs::compress(compression, body).map(Bytes::from),
        #[cfg(not(feature = "compression"))]
        _ => Err(BatchError::CompressionNotBuilt { compression: compression.name() }),
    }
}

#[cfg(feature = "compression")]
mod codecs {
    use std::io::{self, Read, Write};

    use super::{BatchError, Compression, failed};

    /// snappy-java's stream: this magic, two version numbers (i32), then blocks with their length (i32) in front.
    const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
    const XERIAL_HEADER_BYTES: usize = 16;
    /// Plain bytes in a block of that stream, as snappy-java writes it.
    const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

    pub(super) fn reader<'a>(
        compression: Compression,
        body: &'a [u8],
        max_block_bytes: usize,
    ) -> Result<Box<dyn Read + 'a>, BatchError> {
        Ok(match compression {
            Compression::None => Box::new(body),
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(body)),
            Compression::Snappy => Box::new(SnappyReader::new(body, max_block_bytes)),
            Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(body)),
            Compression::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(body);
                Box::new(decoder.map_err(|error| failed(compression, &error))?)
            }
        })
    }

    /// snappy-java's stream, or one raw block as some clients write.
    struct SnappyReader<'a> {
        rest: &'a [u8],
        framed: bool,
        max_block_bytes: usize,
        plain: Vec<u8>,
        /// Bytes of `plain` that were read.
        read: usize,
    }

    impl<'a> SnappyReader<'a> {
        fn new(body: &'a [u8], max_block_bytes: usize) -> Self {
            let framed = body.starts_with(&XERIAL_MAGIC);
            Self { rest: body, framed, max_block_bytes, plain: Vec::new(), read: 0 }
        }

        /// The next compressed block; `None` at the end.
        fn block(&mut self) -> io::Result<Option<&'a [u8]>> {
            let ends = || io::Error::other("the stream ends inside a block");
            if !self.framed {
                let block = std::mem::take(&mut self.rest);
                return Ok(Some(block).filter(|block| !block.is_empty()));
            }
            // Streams may follow one another, each with its header.
            while self.rest.starts_with(&XERIAL_MAGIC) {
                self.rest = self.rest.get(XERIAL_HEADER_BYTES..).ok_or_else(ends)?;
            }
            if self.rest.is_empty() {
                return Ok(None);
            }
            let (length, after) = self.rest.split_first_chunk::<4>().ok_or_else(ends)?;
            let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| ends())?;
            let (block, after) = after.split_at_checked(length).ok_or_else(ends)?;
            self.rest = after;
            Ok(Some(block))
        }
    }

    impl Read for SnappyReader<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            while self.read == self.plain.len() {
                let Some(block) = self.block()? else { return Ok(0) };
                if snap::raw::decompress_len(block).map_err(io::Error::other)? > self.max_block_bytes {
                    let max_bytes = self.max_block_bytes;
                    return Err(io::Error::other(BatchError::DecompressedTooLarge { max_bytes }));
                }
                self.plain = snap::raw::Decoder::new().decompress_vec(block).map_err(io::Error::other)?;
                self.read = 0;
            }
            let mut left = self.plain.get(self.read..).unwrap_or_default();
            let read = left.read(buf)?;
            self.read += read;
            Ok(read)
        }
    }

    pub(super) fn compress(compression: Compression, body: &[u8]) -> Result<Vec<u8>, BatchError> {
        let result = match compression {
            Compression::None => return Ok(body.to_vec()),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(body).and_then(|()| encoder.finish())
            }
            Compression::Snappy => return snappy_stream(body),
            Compression::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(body).and_then(|()| encoder.finish().map_err(std::io::Error::other))
            }
            Compression::Zstd => zstd::stream::encode_all(body, 0),
        };
        result.map_err(|error| failed(compression, &error))
    }

    fn snappy_stream(body: &[u8]) -> Result<Vec<u8>, BatchError> {
        let compression = Compression::Snappy;
        let mut stream = XERIAL_MAGIC.to_vec();
        stream.extend_from_slice(&1_i32.to_be_bytes());
        stream.extend_from_slice(&1_i32.to_be_bytes());
        for block in body.chunks(XERIAL_BLOCK_BYTES) {
            let block = snap::raw::Encoder::new().compress_vec(block);
            let block = block.map_err(|error| failed(compression, &io::Error::other(error)))?;
            let length = i32::try_from(block.len()).map_err(|_| BatchError::Unencodable)?;
            stream.extend_from_slice(&length.to_be_bytes());
            stream.extend_from_slice(&block);
        }
        Ok(stream)
    }
}
