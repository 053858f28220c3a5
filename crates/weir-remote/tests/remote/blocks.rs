//! A server that takes whole blocks only, and short payloads.

use futures_util::FutureExt;
use weir_device::{
    Device, DeviceExt, ErrorKind, IoHeader, Operation, OperationKind, Segment, SharedBuf,
    WriteZeroesFlags, conformance,
};

use crate::support::{Server, byte, fill, run, settle};

const BLOCK: u32 = 512;
const PAYLOAD: u32 = 1024;

#[test]
fn it_conforms_on_a_server_with_blocks() {
    run(async {
        for (block, payload) in [(512, 1024), (512, 1300), (4096, 4096)] {
            let server = Server::start_with_blocks(7, block, payload).await;
            let volume = server.open(|_| {}).await;
            assert_eq!(volume.info().block_bytes_min, block);
            server.device.calls.borrow_mut().clear();
            conformance::run(&*volume, 5, 300).await;
            let calls = server.device.calls.borrow();
            let is_whole = |call: &&(OperationKind, u64)| call.1.is_multiple_of(block.into());
            assert_eq!(calls.iter().find(|call| !is_whole(call)), None);
        }
    });
}

#[test]
fn changes_in_one_block_of_the_server_do_not_undo_each_other() {
    run(async {
        let server = Server::start_with_blocks(1, BLOCK, PAYLOAD).await;
        let volume = server.open(|_| {}).await;
        fill(&volume, 0, 1024, 9).await.unwrap();
        // No two of them have a byte in common; all have a block in common with another one.
        server.device.hold(true);
        let mut first = Box::pin(fill(&volume, 0, 100, 1));
        let mut second = Box::pin(fill(&volume, 200, 100, 2));
        let mut across = Box::pin(fill(&volume, 500, 100, 3));
        let mut zeroes = Box::pin(volume.write_zeroes(700, 100, WriteZeroesFlags::default()));
        for change in [&mut first, &mut second, &mut across] {
            assert!(change.as_mut().now_or_never().is_none());
        }
        assert!(zeroes.as_mut().now_or_never().is_none());
        settle().await;
        server.device.hold(false);
        let (first, second, across, zeroes) = futures_util::join!(first, second, across, zeroes);
        for change in [first, second, across, zeroes] {
            change.unwrap();
        }
        let expected =
            [(0, 1), (99, 1), (100, 9), (200, 2), (299, 2), (300, 9), (500, 3), (599, 3), (600, 9)];
        for (offset, mark) in expected.into_iter().chain([(699, 9), (700, 0), (799, 0), (800, 9)]) {
            assert_eq!(byte(&volume, offset).await.unwrap(), mark, "at {offset}");
            assert_eq!(server.device.byte(offset).await, mark, "at {offset}, at the server");
        }
    });
}

#[test]
fn a_piece_that_failed_is_not_hidden_by_those_behind_it() {
    run(async {
        let server = Server::start_with_blocks(1, BLOCK, PAYLOAD).await;
        let volume = server.open(|_| {}).await;
        let pieces = 4;
        let (payload, bytes) = (u64::from(PAYLOAD), PAYLOAD as usize * pieces);
        for failed in 0..4 {
            let at = failed * payload;
            server.device.failing_at.set(Some(at));
            server.device.failing.set(Some((OperationKind::Write, ErrorKind::NoSpace)));
            let error = fill(&volume, 0, bytes, 1).await.expect_err("a piece failed");
            assert_eq!(error.kind(), ErrorKind::NoSpace, "the piece at {at}");
            let segment = |offset, len| {
                let data = SharedBuf::copy_of(&vec![2; len]);
                Segment { offset, change: weir_device::Change::Data(data) }
            };
            let segments = vec![segment(at, 512), segment(5120, 512), segment(6144, 512)];
            let batch = Operation::Batch { segments, fua: false };
            let error = volume.call(IoHeader::internal(), batch).await.expect_err("a part failed");
            assert_eq!(error.kind(), ErrorKind::NoSpace, "the segment at {at}");
            server.device.failing.set(Some((OperationKind::Read, ErrorKind::Corrupt)));
            volume.read(0, &mut vec![0; bytes]).await.expect_err("a piece could not be read");
            server.device.failing.set(None);
            fill(&volume, 0, bytes, 3).await.expect("nothing fails any more");
        }
    });
}
