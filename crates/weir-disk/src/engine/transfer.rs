//! How far a read or write has come: decisions that both engines share.

use std::ops::{Deref, DerefMut};

use weir_device::{AlignedBuf, SharedBuf};

/// Most pieces that the kernel takes in one vectored call (`UIO_MAXIOV`).
pub(crate) const PIECES_PER_CALL_MAX: usize = 1024;

/// What to do after the kernel moved some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The whole range is done.
    Done,
    /// Go on from this many bytes into the range.
    Continue(usize),
    /// No way forward; this many bytes were moved.
    Stuck(usize),
}

/// Decides after a read call: `done` bytes were read before it, `moved` by it, of `wanted`.
///
/// A direct read that stops off the alignment has met the end of the file; asking again there would
/// be refused.
pub(crate) fn after_read(done: usize, moved: usize, wanted: usize, alignment: usize) -> Next {
    let done = done + moved;
    assert!(done <= wanted, "the kernel reads no more than it was asked for");
    if done == wanted {
        Next::Done
    } else if moved == 0 || !done.is_multiple_of(alignment) {
        Next::Stuck(done)
    } else {
        Next::Continue(done)
    }
}

/// Decides after a write call. A direct write that stopped off the alignment goes on from the last
/// whole block.
pub(crate) fn after_write(done: usize, moved: usize, wanted: usize, alignment: usize) -> Next {
    assert!(done + moved <= wanted, "the kernel writes no more than it was given");
    if done + moved == wanted {
        return Next::Done;
    }
    let aligned = (done + moved) / alignment * alignment;
    if aligned == done { Next::Stuck(done + moved) } else { Next::Continue(aligned) }
}

/// The bytes of `pieces` after the first `done`, as slices for one vectored call.
pub(crate) fn remaining(pieces: &[SharedBuf], done: usize) -> impl Iterator<Item = &[u8]> {
    let mut skip = done;
    pieces
        .iter()
        .filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let rest = &piece[skipped..];
            (!rest.is_empty()).then_some(rest)
        })
        .take(PIECES_PER_CALL_MAX)
}

/// The same for reading into them.
pub(crate) fn remaining_mut(
    pieces: &mut [AlignedBuf],
    done: usize,
) -> impl Iterator<Item = &mut [u8]> {
    let mut skip = done;
    pieces
        .iter_mut()
        .filter_map(move |piece| {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let rest = &mut piece.deref_mut()[skipped..];
            (!rest.is_empty()).then_some(rest)
        })
        .take(PIECES_PER_CALL_MAX)
}

/// Bytes in all pieces.
pub(crate) fn total_len(pieces: &[impl Deref<Target = [u8]>]) -> usize {
    pieces.iter().map(|piece| piece.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_skips_whole_and_partial_pieces() {
        let pieces =
            [SharedBuf::copy_of(b"abc"), SharedBuf::default(), SharedBuf::copy_of(b"defg")];
        for done in 0..=7 {
            let rest: Vec<u8> = remaining(&pieces, done).flatten().copied().collect();
            assert_eq!(rest, b"abcdefg"[done..]);
        }
        assert_eq!(total_len(&pieces), 7);
    }

    #[test]
    fn what_is_left_to_read_into_skips_whole_and_partial_pieces() {
        for done in 0..=7 {
            let mut pieces = [3, 0, 4].map(AlignedBuf::zeroed);
            remaining_mut(&mut pieces, done).for_each(|rest| rest.fill(1));
            let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(bytes, [vec![0; done], vec![1; 7 - done]].concat());
        }
    }

    #[test]
    fn one_call_takes_a_limited_number_of_pieces() {
        let pieces = vec![SharedBuf::copy_of(b"x"); PIECES_PER_CALL_MAX + 5];
        assert_eq!(remaining(&pieces, 0).count(), PIECES_PER_CALL_MAX);
        assert_eq!(remaining(&pieces, PIECES_PER_CALL_MAX).count(), 5);
    }

    #[test]
    fn reads_stop_at_the_end_of_the_file() {
        assert_eq!(after_read(0, 4096, 4096, 512), Next::Done);
        assert_eq!(after_read(0, 1024, 4096, 512), Next::Continue(1024));
        assert_eq!(after_read(1024, 0, 4096, 512), Next::Stuck(1024));
        assert_eq!(after_read(0, 700, 4096, 512), Next::Stuck(700));
        assert_eq!(after_read(0, 700, 4096, 1), Next::Continue(700));
    }

    #[test]
    fn writes_go_on_from_a_whole_block() {
        assert_eq!(after_write(0, 4096, 4096, 512), Next::Done);
        assert_eq!(after_write(0, 1300, 4096, 512), Next::Continue(1024));
        assert_eq!(after_write(1024, 100, 4096, 512), Next::Stuck(1124));
        assert_eq!(after_write(0, 0, 4096, 1), Next::Stuck(0));
    }
}
