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
    fn circles_are_named() {
        let of = |list: &[&'static str]| BTreeSet::from_iter(list.iter().copied());
        let uses =
            Uses::from([("a", of(&["b"])), ("b", of(&["a"])), ("c", of(&[])), ("d", of(&["d"]))]);
        assert_eq!(order(&uses), Err(vec!["a", "b", "d"]));
    }
}
