//! The order of resources: those that others use come first, and go last.

use std::collections::{BTreeMap, BTreeSet};

/// Nodes and the nodes that each uses.
pub type Uses<T> = BTreeMap<T, BTreeSet<T>>;

/// Orders nodes so that each comes after all that it uses. Of nodes that could come next, the smallest
/// does.
///
/// # Errors
/// The nodes in a circle, and those that use them.
pub fn order<T: Ord + Clone>(uses: &Uses<T>) -> Result<Vec<T>, Vec<T>> {
    let mut users: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    let mut missing: BTreeMap<&T, usize> = BTreeMap::new();
    for (node, used) in uses {
        let used: Vec<&T> = used.iter().filter(|used| uses.contains_key(*used)).collect();
        missing.insert(node, used.len());
        for one in used {
            users.entry(one).or_default().push(node);
        }
    }
    let mut ready: BTreeSet<&T> = uses.keys().filter(|node| missing[*node] == 0).collect();
    let mut ordered = Vec::with_capacity(uses.len());
    while let Some(node) = ready.pop_first() {
        missing.remove(node);
        ordered.push(node.clone());
        for user in users.remove(node).unwrap_or_default() {
            if let Some(count) = missing.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    ready.insert(user);
                }
            }
        }
    }
    match missing.is_empty() {
        true => Ok(ordered),
        false => Err(missing.into_keys().cloned().collect()),
    }
}

/// The node to remove next: the largest one that no other uses, and true; if there are circles only, the
/// largest one of a circle that no node outside of it uses, and false. `None` if there are no nodes.
pub fn removable<T: Ord + Clone>(uses: &Uses<T>) -> Option<(T, bool)> {
    let used = |(user, used): (&T, &BTreeSet<T>)| {
        used.iter().filter(|one| *one != user).cloned().collect::<Vec<_>>()
    };
    let used: BTreeSet<T> = uses.iter().flat_map(used).collect();
    if let Some(free) = uses.keys().rev().find(|node| !used.contains(*node)) {
        return Some((free.clone(), true));
    }
    let reached: BTreeMap<&T, BTreeSet<&T>> =
        uses.keys().map(|node| (node, reach(uses, node))).collect();
    // Each node that reaches it is reached from it.
    let is_first = |node: &&T| {
        let mut users = reached.iter().filter(|(_, reached)| reached.contains(*node));
        users.all(|(user, _)| reached[*node].contains(*user))
    };
    uses.keys().rev().find(is_first).map(|node| (node.clone(), false))
}

/// The nodes that a node uses, by others too, and itself.
fn reach<'a, T: Ord>(uses: &'a Uses<T>, node: &'a T) -> BTreeSet<&'a T> {
    let (mut found, mut open) = (BTreeSet::from([node]), vec![node]);
    while let Some(node) = open.pop() {
        for used in uses.get(node).into_iter().flatten() {
            if uses.contains_key(used) && found.insert(used) {
                open.push(used);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use unlade_testkit::cases;

    use super::*;

    #[test]
    fn each_node_comes_after_those_that_it_uses() {
        cases(200, |random| {
            let count = random.below(12_u32);
            let mut uses: Uses<u32> = Uses::new();
            for node in 0..count {
                // 99 is no node: it is ignored.
                let used = (0..node).chain([99]).filter(|_| random.percent(30)).collect();
                uses.insert(node * 7 % 13, BTreeSet::from_iter::<BTreeSet<u32>>(used));
            }
            let renamed = |node: &u32| if *node == 99 { 99 } else { node * 7 % 13 };
            let uses: Uses<u32> = uses
                .iter()
                .map(|(node, used)| (*node, used.iter().map(renamed).collect()))
                .collect();
            let ordered = order(&uses).unwrap();
            assert_eq!(ordered.len(), uses.len());
            for (at, node) in ordered.iter().enumerate() {
                let before = &ordered[..at];
                let used = uses[node].iter().filter(|used| uses.contains_key(used));
                for one in used {
                    assert!(before.contains(one), "{node} before {one}: {uses:?}");
                }
            }
        });
    }

    #[test]
    fn users_are_removed_before_what_they_use() {
        cases(200, |random| {
            let count = random.below(10_u32);
            let has_circles = random.percent(50);
            let mut uses: Uses<u32> = Uses::new();
            for node in 0..count {
                let limit = if has_circles { count } else { node };
                uses.insert(node, (0..limit).filter(|_| random.percent(20)).collect());
            }
            let full = uses.clone();
            while let Some((node, is_free)) = removable(&uses) {
                let users =
                    uses.iter().filter(|(user, used)| **user != node && used.contains(&node));
                let users: Vec<u32> = users.map(|(user, _)| *user).collect();
                assert_eq!(users.is_empty(), is_free, "{node} of {full:?}");
                assert!(has_circles || is_free, "{node} of {full:?}");
                // A user of one that is not free is in a circle with it.
                for user in users {
                    assert!(reach(&uses, &node).contains(&user), "{node} before {user}: {full:?}");
                }
                uses.remove(&node);
            }
            assert!(uses.is_empty());
        });
    }

    #[test]
    fn circles_are_named() {
        let of = |list: &[&'static str]| BTreeSet::from_iter(list.iter().copied());
        let uses =
            Uses::from([("a", of(&["b"])), ("b", of(&["a"])), ("c", of(&[])), ("d", of(&["d"]))]);
        assert_eq!(order(&uses), Err(vec!["a", "b", "d"]));
    }
}
