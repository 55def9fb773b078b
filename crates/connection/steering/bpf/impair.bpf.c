/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A link that loses, duplicates and delays packets, for tests.
 *
 *   link egress/ingress:  verdict by seed, number ─► drop
 *                                                 ─► clone to the link, and on
 *                                                 ─► late device ─► user space delays
 *   late device ingress:  (user space writes a late frame back) ─► link egress/ingress, marked
 *
 * The verdict on the n-th packet of a direction is a function of the seed and n alone, that of
 * crates/base/testkit/src/line.rs; tests/impair.rs compares both. The order of packets depends on
 * the peers.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/types.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT -1 /* both TCX_NEXT and TC_ACT_UNSPEC */
#define SHOT 2  /* both TCX_DROP and TC_ACT_SHOT */
/* Mark of packets that already have a verdict. */
#define DECIDED 0x756e6c64

/* Layout of `counts`, as in src/impair.rs. */
enum count { SEEN, DROPPED, DUPLICATED, DELAYED, COUNTS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

/* Probabilities in 2^-32; set at load. */
volatile const __u64 drop_below = 0;
volatile const __u64 duplicate_below = 0;
volatile const __u64 delay_below = 0;
volatile const __u64 seed = 0;
volatile const __u32 link_ifindex = 0;
volatile const __u32 late_out_ifindex = 0;
volatile const __u32 late_in_ifindex = 0;

/* Number of the next packet of each direction. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&counts, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

/* SplitMix64's output function: 32 bits for one decision about one packet. */
static __always_inline __u32 draw(__u64 number, __u64 decision)
{
	__u64 z = seed + (number * 4 + decision) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (z ^ (z >> 31)) >> 32;
}

static __always_inline int decide(struct __sk_buff *skb, __u32 direction, __u64 flags,
				  __u32 late_ifindex)
{
	if (skb->mark == DECIDED) {
		skb->mark = 0;
		return NEXT;
	}
	/* ARP passes: it is not under test. */
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return NEXT;
	__u64 *next = bpf_map_lookup_elem(&numbers, &direction);
	if (!next)
		return NEXT;
	__u64 number = __sync_fetch_and_add(next, 1) * 2 + direction;
	count(SEEN);
	if (draw(number, 0) < drop_below) {
		count(DROPPED);
		return SHOT;
	}
	if (draw(number, 1) < duplicate_below) {
		skb->mark = DECIDED;
		if (!bpf_clone_redirect(skb, link_ifindex, flags))
			count(DUPLICATED);
		skb->mark = 0;
	}
	if (draw(number, 2) < delay_below) {
		count(DELAYED);
		return bpf_redirect(late_ifindex, 0);
	}
	return NEXT;
}

SEC("classifier")
int impair_egress(struct __sk_buff *skb)
{
	return decide(skb, 0, 0, late_out_ifindex);
}

SEC("classifier")
int impair_ingress(struct __sk_buff *skb)
{
	return decide(skb, 1, BPF_F_INGRESS, late_in_ifindex);
}

SEC("classifier")
int late_egress(struct __sk_buff *skb)
{
	skb->mark = DECIDED;
	return bpf_redirect(link_ifindex, 0);
}

SEC("classifier")
int late_ingress(struct __sk_buff *skb)
{
	skb->mark = DECIDED;
	return bpf_redirect(link_ifindex, BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
