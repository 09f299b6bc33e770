//! What the shared volume holds: claims, the fence, manifests, segments.

use std::collections::BTreeMap;

/// Number of a leader, from 0.
pub type LeaderId = u8;

/// A leader epoch; 0 is before the first.
pub type Epoch = u8;

/// A record: unique in a run.
pub type Value = u8;

/// A fence record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mark {
    /// Zeros.
    #[default]
    Unclaimed,
    /// Claimed by this leader.
    Claimed(LeaderId),
    /// Filled by a claim of a higher epoch.
    Skipped,
}

/// A record of a segment as it stands on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cell {
    pub value: Value,
    /// On stable storage; else in the server's memory, and gone if it loses power.
    pub durable: bool,
}

/// The segment of an epoch. A hole (`None`) is a write that has not landed, or that a loss of power took.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Segment {
    pub base: usize,
    pub cells: Vec<Option<Cell>>,
}

/// A run of records of one segment that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin {
    pub epoch: Epoch,
    /// Offset of its first record.
    pub base: usize,
    pub count: usize,
}

/// What a leader found and serves, in the order of offsets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct View(pub Vec<Pin>);

impl View {
    /// The offset behind the last record.
    pub fn end(&self) -> usize {
        self.0.last().map_or(0, |pin| pin.base + pin.count)
    }

    /// The place of every offset.
    pub fn places(&self) -> impl Iterator<Item = (usize, Epoch)> + '_ {
        self.0.iter().flat_map(|pin| (pin.base..pin.base + pin.count).map(move |offset| (offset, pin.epoch)))
    }
}

/// The volume. Names (claims, manifests) are durable once made: the substrate syncs directories.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Volume {
    pub claims: BTreeMap<Epoch, LeaderId>,
    pub fence: BTreeMap<Epoch, Mark>,
    pub manifests: BTreeMap<Epoch, View>,
    pub segments: BTreeMap<Epoch, Segment>,
}

impl Volume {
    pub fn mark(&self, epoch: Epoch) -> Mark {
        self.fence.get(&epoch).copied().unwrap_or_default()
    }

    /// Whether an epoch above `epoch` is used.
    pub fn is_fenced_above(&self, epoch: Epoch) -> bool {
        self.fence.range(epoch + 1..).any(|(_, mark)| *mark != Mark::Unclaimed)
    }

    pub fn cell(&self, epoch: Epoch, offset: usize) -> Option<Cell> {
        let segment = self.segments.get(&epoch)?;
        *segment.cells.get(offset.checked_sub(segment.base)?)?
    }

    /// A write lands. The first one of an epoch creates its segment.
    pub fn put(&mut self, epoch: Epoch, base: usize, offset: usize, cell: Cell) {
        let segment = self.segments.entry(epoch).or_insert(Segment { base, cells: Vec::new() });
        let Some(index) = offset.checked_sub(segment.base) else { return };
        if segment.cells.len() <= index {
            segment.cells.resize(index + 1, None);
        }
        if let Some(place) = segment.cells.get_mut(index) {
            let was_durable = place.is_some_and(|old| old.durable && old.value == cell.value);
            *place = Some(Cell { durable: cell.durable || was_durable, ..cell });
        }
    }

    /// Whole records of a segment from `from` on, without a hole.
    pub fn run(&self, epoch: Epoch, from: usize) -> usize {
        (from..).take_while(|offset| self.cell(epoch, *offset).is_some()).count()
    }
}
