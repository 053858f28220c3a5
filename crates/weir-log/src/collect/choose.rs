//! Which objects the collector takes next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::{ObjectId, ObjectSeq};
use crate::map::table::LiveObject;
use crate::options::CollectPolicy;

/// Sources of one object at most: bounds the choice, and the requests to read them.
const SOURCES_MAX: usize = 64;

/// Small objects that are worth being merged into one.
const SMALL_MERGED_MIN: usize = 16;

/// How to choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) policy: CollectPolicy,
    /// The newest object: ages are counted from it.
    pub(crate) newest: ObjectSeq,
    /// Payload below which an object is small: a candidate whatever its share.
    pub(crate) small_bytes: u64,
    pub(crate) looks_for_small: bool,
    /// Whether objects are taken because little of them lives, and not only because they are small.
    pub(crate) collects: bool,
    /// Live bytes of what is chosen together; one object may go beyond.
    pub(crate) live_bytes_max: u64,
}

impl Order {
    /// What the space of an object is worth: the highest goes first. In parts of 2^32, so that equal inputs give equal
    /// choices everywhere.
    fn worth(&self, object: &LiveObject) -> u64 {
        let dead = object.payload_bytes - object.live_bytes;
        match self.policy {
            CollectPolicy::Greedy => scaled(dead, object.payload_bytes),
            CollectPolicy::CostBenefit => {
                // (1 - u) * age / (1 + u) with u the live share: the space won, for as long as it is expected to last,
                // per byte read and written.
                let age = self.newest.0.saturating_sub(object.id.seq.0) + 1;
                let won = scaled(dead, object.payload_bytes + object.live_bytes);
                won.saturating_mul(age)
            }
        }
    }

    /// The next sources, best first.
    pub(crate) fn choose(&self, objects: impl Iterator<Item = LiveObject>) -> Vec<LiveObject> {
        let mut best: BinaryHeap<Reverse<(u64, Reverse<ObjectId>)>> = BinaryHeap::new();
        let mut small = Vec::new();
        let mut by_id = std::collections::BTreeMap::new();
        for object in objects {
            if self.looks_for_small && object.payload_bytes < self.small_bytes {
                small.push(object);
            }
            if !self.collects || object.live_bytes == object.payload_bytes {
                continue;
            }
            by_id.insert(object.id, object);
            best.push(Reverse((self.worth(&object), Reverse(object.id))));
            if best.len() > SOURCES_MAX {
                let Reverse((_, Reverse(id))) = best.pop().expect("pushed just now");
                by_id.remove(&id);
            }
        }
        let ordered = best.into_sorted_vec();
        let ordered = ordered.into_iter().map(|Reverse((_, Reverse(id)))| by_id[&id]);
        let mut chosen = self.up_to_a_batch(ordered);
        if chosen.is_empty() && small.len() >= SMALL_MERGED_MIN {
            chosen = self.up_to_a_batch(small.into_iter());
        }
        chosen
    }

    fn up_to_a_batch(&self, objects: impl Iterator<Item = LiveObject>) -> Vec<LiveObject> {
        up_to_a_batch(objects, self.live_bytes_max)
    }
}

/// The first of these, as many as make an object of about so many bytes.
pub(super) fn up_to_a_batch(
    objects: impl Iterator<Item = LiveObject>,
    live_bytes_max: u64,
) -> Vec<LiveObject> {
    let mut live_bytes = 0;
    let mut chosen = Vec::new();
    for object in objects.take(SOURCES_MAX) {
        if !chosen.is_empty() && live_bytes + object.live_bytes > live_bytes_max {
            break;
        }
        live_bytes += object.live_bytes;
        chosen.push(object);
    }
    chosen
}

fn scaled(part: u64, whole: u64) -> u64 {
    (part << 32).checked_div(whole).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weir_device::VolumeId;
    use weir_journal::Epoch;

    use super::*;

    fn object(seq: u64, live_bytes: u64, payload_bytes: u64) -> LiveObject {
        let id = ObjectId { stream: VolumeId([1; 16]), seq: ObjectSeq(seq), epoch: Epoch(1) };
        LiveObject { id, live_bytes, payload_bytes }
    }

    fn order(policy: CollectPolicy) -> Order {
        Order {
            policy,
            newest: ObjectSeq(1000),
            small_bytes: 10,
            looks_for_small: true,
            collects: true,
            live_bytes_max: 100,
        }
    }

    fn sequences(chosen: &[LiveObject]) -> Vec<u64> {
        chosen.iter().map(|o| o.id.seq.0).collect()
    }

    #[test]
    fn greedy_takes_the_emptiest_up_to_a_batch() {
        let objects =
            [object(1, 50, 100), object(2, 100, 100), object(3, 10, 100), object(4, 60, 100)];
        let greedy = order(CollectPolicy::Greedy);
        assert_eq!(sequences(&greedy.choose(objects.into_iter())), [3, 1]);
        assert_eq!(sequences(&greedy.choose([object(1, 150, 151)].into_iter())), [1]);
    }

    #[test]
    fn cost_benefit_prefers_old_objects() {
        let objects = [object(999, 30, 100), object(10, 40, 100)];
        let order = order(CollectPolicy::CostBenefit);
        assert_eq!(sequences(&order.choose(objects.into_iter()))[0], 10);
    }

    #[test]
    fn of_many_the_best_are_chosen_in_their_order() {
        let objects = (1..1000).map(|n| object(n, 1 + (n * 7919) % 997, 1000));
        let chosen = order(CollectPolicy::Greedy).choose(objects);
        let live: Vec<u64> = chosen.iter().map(|o| o.live_bytes).collect();
        assert_eq!(live, (1..=13).collect::<Vec<_>>(), "1 + 2 + ... + 13 is below 100");
    }

    #[test]
    fn small_objects_are_merged_when_there_are_many_and_nothing_else_is_to_do() {
        let order = Order { collects: false, ..order(CollectPolicy::Greedy) };
        assert_eq!(order.choose((1..10).map(|n| object(n, 2, 2))), []);
        assert_eq!(order.choose((1..40).map(|n| object(n, 5, 5))).len(), 20);
        let other = Order { looks_for_small: false, ..order };
        assert_eq!(other.choose((1..40).map(|n| object(n, 5, 5))), []);
    }
}
