//! Decompression and compression of a batch's records, all four codecs of Kafka, behind the feature `compression`.
//!
//! Every decoder is stopped at a bound, so that a small batch cannot ask for a large allocation.

use bytes::Bytes;

use super::error::BatchError;
use super::header::Compression;

/// The records of a batch in plain, at most `max_bytes` of them.
///
/// # Errors
///
/// [`BatchError::DecompressedTooLarge`], [`BatchError::Decompression`], or [`BatchError::CompressionNotBuilt`].
pub fn decompress(compression: Compression, body: &Bytes, max_bytes: usize) -> Result<Bytes, BatchError> {
    match compression {
        Compression::None => Ok(body.clone()),
        #[cfg(feature = "compression")]
        _ => codecs::decompress(compression, body, max_bytes).map(Bytes::from),
        #[cfg(not(feature = "compression"))]
        _ => {
            let _ = max_bytes;
            Err(BatchError::CompressionNotBuilt { compression: compression.name() })
        }
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
    use std::io::{Read, Write};

    use super::{BatchError, Compression};

    /// snappy-java's stream: this magic, two version numbers (i32), then blocks with their length (i32) in front.
    const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
    const XERIAL_HEADER_BYTES: usize = 16;
    /// Plain bytes in a block of that stream, as snappy-java writes it.
    const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

    fn failed(compression: Compression, error: impl std::fmt::Display) -> BatchError {
        BatchError::Decompression { compression: compression.name(), reason: error.to_string() }
    }

    pub(super) fn decompress(
        compression: Compression,
        body: &[u8],
        max_bytes: usize,
    ) -> Result<Vec<u8>, BatchError> {
        match compression {
            Compression::None => Ok(body.to_vec()),
            Compression::Gzip => drain(compression, flate2::read::MultiGzDecoder::new(body), max_bytes),
            Compression::Snappy => snappy(body, max_bytes),
            Compression::Lz4 => drain(compression, lz4_flex::frame::FrameDecoder::new(body), max_bytes),
            Compression::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(body);
                drain(compression, decoder.map_err(|error| failed(compression, error))?, max_bytes)
            }
        }
    }

    /// Reads `source` to its end, or to one byte behind the bound.
    fn drain(compression: Compression, source: impl Read, max_bytes: usize) -> Result<Vec<u8>, BatchError> {
        let bound = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
        let mut plain = Vec::new();
        source.take(bound).read_to_end(&mut plain).map_err(|error| failed(compression, error))?;
        if plain.len() > max_bytes { Err(BatchError::DecompressedTooLarge { max_bytes }) } else { Ok(plain) }
    }

    /// snappy-java's stream, or one raw block as some clients write.
    fn snappy(body: &[u8], max_bytes: usize) -> Result<Vec<u8>, BatchError> {
        let mut plain = Vec::new();
        if !body.starts_with(&XERIAL_MAGIC) {
            snappy_block(body, max_bytes, &mut plain)?;
            return Ok(plain);
        }
        let ends = || failed(Compression::Snappy, "the stream ends inside a block");
        let mut rest = body;
        while !rest.is_empty() {
            // Streams may follow one another, each with its header.
            if rest.starts_with(&XERIAL_MAGIC) {
                rest = rest.get(XERIAL_HEADER_BYTES..).ok_or_else(ends)?;
                continue;
            }
            let (length, after) = rest.split_first_chunk::<4>().ok_or_else(ends)?;
            let length = usize::try_from(i32::from_be_bytes(*length)).map_err(|_| ends())?;
            let (block, after) = after.split_at_checked(length).ok_or_else(ends)?;
            snappy_block(block, max_bytes, &mut plain)?;
            rest = after;
        }
        Ok(plain)
    }

    fn snappy_block(block: &[u8], max_bytes: usize, plain: &mut Vec<u8>) -> Result<(), BatchError> {
        let compression = Compression::Snappy;
        let length = snap::raw::decompress_len(block).map_err(|error| failed(compression, error))?;
        if length > max_bytes.saturating_sub(plain.len()) {
            return Err(BatchError::DecompressedTooLarge { max_bytes });
        }
        let block = snap::raw::Decoder::new().decompress_vec(block);
        plain.extend_from_slice(&block.map_err(|error| failed(compression, error))?);
        Ok(())
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
        result.map_err(|error| failed(compression, error))
    }

    fn snappy_stream(body: &[u8]) -> Result<Vec<u8>, BatchError> {
        let compression = Compression::Snappy;
        let mut stream = XERIAL_MAGIC.to_vec();
        stream.extend_from_slice(&1_i32.to_be_bytes());
        stream.extend_from_slice(&1_i32.to_be_bytes());
        for block in body.chunks(XERIAL_BLOCK_BYTES) {
            let block = snap::raw::Encoder::new().compress_vec(block);
            let block = block.map_err(|error| failed(compression, error))?;
            let length = i32::try_from(block.len()).map_err(|error| failed(compression, error))?;
            stream.extend_from_slice(&length.to_be_bytes());
            stream.extend_from_slice(&block);
        }
        Ok(stream)
    }
}
