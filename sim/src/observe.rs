//! What a volume shows after it was opened, byte by byte.

use std::rc::Rc;

use tokio::time::timeout;
use weir_device::DeviceExt;

use crate::client::Life;
use crate::dice::Dice;
use crate::env::{HANG, Stop};
use crate::oracle::{Observation, Point};

/// Smallest range that is looked at when a part of the volume cannot be read.
const PROBE_BYTES_MIN: u64 = 512;

/// Reads the whole volume, of which what was applied by `point` is certain.
pub(crate) async fn observe(
    life: &Rc<Life>,
    point: Point,
    dice: &mut Dice,
) -> Result<Observation, Stop> {
    let world = &life.world;
    let violate = |message: String| {
        world.violate(message);
        Err(Stop)
    };
    life.stack.check_invariants();
    let size = world.profile.volume_bytes;
    let device = life.stack.size();
    if !world.sizes.settle(device) {
        return violate(format!("the volume has {device} bytes now"));
    }
    // What lies beyond the end shows as zeroes.
    let end_of_volume = world.bytes_within(device);
    let mut seen = Observation { bytes: Vec::new(), unreadable: Vec::new() };
    seen.bytes.resize(usize::try_from(size).expect("small"), 0);
    let step = dice.pick(&[32 << 10, 64 << 10, 100_000, 256 << 10]);
    let mut waiting: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < end_of_volume {
        let end = (at + step).min(end_of_volume).min(world.profile.islands.end(at));
        waiting.push((at, end));
        at = end;
    }
    waiting.reverse();
    while let Some((start, end)) = waiting.pop() {
        let read = timeout(HANG, probe(life, point, start, end - start)).await;
        if world.is_violated() {
            return Err(Stop);
        }
        let Ok(read) = read else { return violate("a read after recovery hangs".into()) };
        match read {
            Some(bytes) => {
                let index = |at: u64| usize::try_from(at).expect("small");
                seen.bytes[index(start)..index(end)].copy_from_slice(&bytes);
            }
            None if end - start <= PROBE_BYTES_MIN => {
                world.events.borrow_mut().count("range unreadable after recovery", 1);
                seen.unreadable.push((start, end));
            }
            None => {
                let middle = start + (end - start) / 2;
                waiting.push((middle, end));
                waiting.push((start, middle));
            }
        }
    }
    Ok(seen)
}

async fn probe(life: &Life, point: Point, start: u64, len: u64) -> Option<Vec<u8>> {
    let begun = life.world.oracle.borrow_mut().begin_read();
    let read = life.try_read(begun, point, start, len).await;
    life.world.oracle.borrow_mut().abandon_read(begun);
    read.ok()
}
