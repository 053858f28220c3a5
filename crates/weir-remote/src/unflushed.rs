//! What the server acknowledged and has not flushed: until it has, a server that begins anew may have lost it.
//!
//! Invariants
//!  U1. A piece is what the newest acknowledged change made of its range; pieces are apart.
//!  U2. A flush that succeeded takes off what was acknowledged before it was asked for, and nothing later.

use std::collections::BTreeMap;

use weir_device::{ByteRange, SharedBuf, mutant};

/// What a range was made.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// These bytes.
    Data(SharedBuf),
    /// Zeroes.
    Zeroes {
        /// Provisioned.
        no_hole: bool,
    },
    /// Something that is not kept.
    Unknown,
}

#[derive(Debug)]
struct Piece {
    end: u64,
    content: Content,
    /// Flushes that were asked for before it was acknowledged.
    flushes: u64,
}

/// Memory of one piece without its data.
const PIECE_BYTES: u64 = 128;

impl Piece {
    fn memory_bytes(&self) -> u64 {
        let data = match &self.content {
            Content::Data(data) => data.memory_bytes(),
            Content::Zeroes { .. } | Content::Unknown => 0,
        };
        PIECE_BYTES + data as u64
    }

    /// What is left of it within `range`.
    fn cut(&self, start: u64, range: ByteRange) -> Self {
        let content = match &self.content {
            Content::Data(data) => {
                let to_usize = |bytes: u64| usize::try_from(bytes).expect("it is within the data");
                let (skip, len) = (to_usize(range.start - start), to_usize(range.len()));
                Content::Data(data.slice(skip, len))
            }
            other => other.clone(),
        };
        Self { end: range.end, content, flushes: self.flushes }
    }
}

/// The pieces by their first byte. See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    pieces: BTreeMap<u64, Piece>,
    bytes: u64,
    memory_bytes: u64,
    flushes: u64,
}

impl Unflushed {
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of the device that are not flushed.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory that they take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn insert(&mut self, start: u64, piece: Piece) {
        self.bytes += piece.end - start;
        self.memory_bytes += piece.memory_bytes();
        self.pieces.insert(start, piece);
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.bytes -= piece.end - start;
        self.memory_bytes -= piece.memory_bytes();
        Some(piece)
    }

    /// The starts of the pieces that share a byte with `range`.
    fn within(&self, range: ByteRange) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.pieces.range(..range.start).next_back();
        let first = before.filter(|(_, piece)| piece.end > range.start).map(|(start, _)| *start);
        first
            .into_iter()
            .chain(self.pieces.range(range.start..range.end).map(|(s, _)| *s))
            .collect()
    }

    /// Whether a byte of it is not flushed.
    pub(crate) fn overlaps(&self, range: ByteRange) -> bool {
        !self.within(range).is_empty()
    }

    /// A change of the range survives by itself: what was there before is no more.
    pub(crate) fn forget(&mut self, range: ByteRange) {
        for start in self.within(range) {
            let Some(piece) = self.remove(start) else { continue };
            if start < range.start {
                let left = ByteRange::new(start, range.start);
                self.insert(start, piece.cut(start, left));
            }
            if piece.end > range.end {
                let right = ByteRange::new(range.end, piece.end);
                self.insert(range.end, piece.cut(start, right));
            }
        }
    }

    /// A change of the range was acknowledged.
    pub(crate) fn record(&mut self, range: ByteRange, content: Content) {
        if range.is_empty() {
            return;
        }
        self.forget(range);
        let piece = Piece { end: range.end, content, flushes: self.flushes };
        self.insert(range.start, piece);
    }

    /// Flushes that were asked for: the number of the last one.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes
    }

    /// A flush is asked for: its number.
    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.flushes += 1;
        self.flushes
    }

    /// The flush of this number succeeded.
    pub(crate) fn end_flush(&mut self, flush: u64) {
        let is_done = |piece: &Piece| piece.flushes < flush || mutant("flush_covers_later_writes");
        let flushed = self.pieces.iter().filter(|(_, piece)| is_done(piece));
        let flushed: Vec<u64> = flushed.map(|(start, _)| *start).collect();
        for start in flushed {
            self.remove(start);
        }
    }

    /// All pieces, in the order of the device.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (ByteRange, &Content)> {
        self.pieces.iter().map(|(start, piece)| (ByteRange::new(*start, piece.end), &piece.content))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, usize, u8),
        Zero(usize, usize),
        Forget(usize, usize),
        Begin,
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..SIZE, 0..20_usize);
        prop_oneof![
            4 => (range(), 1..255_u8).prop_map(|((at, len), mark)| Step::Write(at, len, mark)),
            1 => range().prop_map(|(at, len)| Step::Zero(at, len)),
            1 => range().prop_map(|(at, len)| Step::Forget(at, len)),
            1 => Just(Step::Begin),
            1 => Just(Step::End),
        ]
    }

    fn range(at: usize, len: usize) -> ByteRange {
        ByteRange::new(at as u64, (at + len).min(SIZE) as u64)
    }

    proptest! {
        #[test]
        fn it_is_what_an_array_of_bytes_says(steps in proptest::collection::vec(step(), 0..60)) {
            let mut unflushed = Unflushed::default();
            // What each byte was made, and how many flushes were asked for before.
            let mut model: [Option<(u8, u64)>; SIZE] = [None; SIZE];
            let (mut begun, mut flush) = (0, None);
            for step in steps {
                match step {
                    Step::Write(at, len, mark) => {
                        let range = range(at, len);
                        let len = usize::try_from(range.len()).unwrap();
                        let data = SharedBuf::copy_of(&vec![mark; len]);
                        unflushed.record(range, Content::Data(data));
                        model[at..at + len].fill(Some((mark, begun)));
                    }
                    Step::Zero(at, len) => {
                        let range = range(at, len);
                        unflushed.record(range, Content::Zeroes { no_hole: false });
                        model[at..usize::try_from(range.end).unwrap()].fill(Some((0, begun)));
                    }
                    Step::Forget(at, len) => {
                        unflushed.forget(range(at, len));
                        model[at..(at + len).min(SIZE)].fill(None);
                    }
                    Step::Begin => {
                        begun += 1;
                        flush = Some(unflushed.begin_flush());
                    }
                    Step::End => {
                        if let Some(flush) = flush.take() {
                            unflushed.end_flush(flush);
                            for byte in &mut model {
                                *byte = byte.filter(|(_, before)| *before >= flush);
                            }
                        }
                    }
                }
                let mut found = [None; SIZE];
                for (range, content) in unflushed.pieces() {
                    let at = usize::try_from(range.start).unwrap();
                    for index in 0..usize::try_from(range.len()).unwrap() {
                        prop_assert!(found[at + index].is_none());
                        found[at + index] = Some(match content {
                            Content::Data(data) => data[index],
                            Content::Zeroes { .. } | Content::Unknown => 0,
                        });
                    }
                }
                prop_assert_eq!(found, model.map(|byte| byte.map(|(mark, _)| mark)));
                let bytes = model.iter().flatten().count() as u64;
                prop_assert_eq!(unflushed.bytes(), bytes);
                prop_assert_eq!(unflushed.is_empty(), bytes == 0);
            }
        }
    }
}
