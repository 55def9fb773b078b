/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Redirects packets of known flows. Only the hop limit and the hardware addresses change, so the
 * TCP checksum does not: this is correct for complete and partial checksums. */
#pragma once

#include "tracking.h"

#define NEXT -1 /* both TCX_NEXT and TC_ACT_UNSPEC */
#define SHOT 2  /* both TCX_DROP and TC_ACT_SHOT */

/* Maximum number of redirections of one packet, over all hosts: the first redirection lowers its
 * hop limit to this value, every further one lowers it by one. This bounds loops between hosts with
 * inconsistent tables. */
#define HOPS_MAX 16

/* Reads the state before the fields that it guards, which user space writes first. */
static __always_inline __u32 state_of(struct flow_entry *entry)
{
#if defined(__TARGET_ARCH_x86)
	return *(volatile __u32 *)&entry->state;
#else
	return __sync_fetch_and_add(&entry->state, 0);
#endif
}

/* The acknowledgement of a segment that was forwarded by several owners may be older than the
 * client's newest one. A socket restored meanwhile considers it too old and drops the segment (RFC
 * 5961 5.2). The segment therefore gets the client's newest acknowledgement and its window. A wrong
 * checksum stays wrong. */
static __always_inline void refresh_ack(struct __sk_buff *skb, const struct segment *segment,
					const struct tracked_state *tracked)
{
	__u32 newest = tracked->last_ack, tcp = segment->at;
	__be32 from = bpf_htonl(segment->ack), to = bpf_htonl(newest);
	__be16 before = bpf_htons(segment->window), after = bpf_htons(tracked->last_window);

	if (bpf_l4_csum_replace(skb, tcp + 16, from, to, sizeof(to)) ||
	    bpf_skb_store_bytes(skb, tcp + 8, &to, sizeof(to), 0))
		return;
	if (!bpf_l4_csum_replace(skb, tcp + 16, before, after, sizeof(after)))
		bpf_skb_store_bytes(skb, tcp + 14, &after, sizeof(after), 0);
}

/* Updates the tracked state from a valid segment, and refreshes an old acknowledgement. */
static __always_inline void note(struct __sk_buff *skb, const struct segment *segment,
				 struct flow_entry *entry)
{
	__u32 update = evaluate(&entry->tracked, segment);

	if (update & (UPDATE_ACK | UPDATE_SEQ)) {
		if (is_intact_skb(skb, segment))
			apply(&entry->tracked, segment, update);
		else
			count(COUNT_CORRUPT);
	}
	if (update & UPDATE_OLD)
		refresh_ack(skb, segment, &entry->tracked);
}

/* Returns the hop limit after one more redirection; 0 if none is allowed. */
static __always_inline __u8 next_hops(__u8 hops)
{
	if (hops > HOPS_MAX)
		return HOPS_MAX;
	return hops > 1 ? hops - 1 : 0;
}

/* Lowers the hop limit of the frame in place; -1 if it must not be redirected. */
static __always_inline int lower_ipv4(struct iphdr *ip, const void *end)
{
	if ((const void *)(ip + 1) > end)
		return -1;
	__u8 hops = next_hops(ip->ttl);

	if (!hops)
		return -1;
	/* RFC 1624: the word of hop limit and protocol decreases, the checksum increases. */
	__u32 sum = (__u16)~ip->check;

	sum += (__u16)~bpf_htons((__u16)ip->ttl << 8) + bpf_htons((__u16)hops << 8);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	ip->ttl = hops;
	return 0;
}

static __always_inline int lower_hops(struct __sk_buff *skb, __u32 family)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (family == 4)
		return lower_ipv4(data + sizeof(struct ethhdr), end);
	struct ipv6hdr *ip = data + sizeof(struct ethhdr);

	if ((void *)(ip + 1) > end)
		return -1;
	__u8 hops = next_hops(ip->hop_limit);

	if (!hops)
		return -1;
	/* The helper also updates a device's sum of the packet: IPv6 has no header checksum. */
	return bpf_skb_store_bytes(skb, sizeof(struct ethhdr) +
					__builtin_offsetof(struct ipv6hdr, hop_limit),
				   &hops, sizeof(hops), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int send_to_owner(struct __sk_buff *skb, struct flow_entry *entry,
					 __u32 family)
{
	if (lower_hops(skb, family)) {
		count(COUNT_HOPS);
		return SHOT;
	}
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	/* Written in place: a helper call would take a third of the program's time. */
	if (data + sizeof(entry->mac) > end)
		return NEXT;
	__builtin_memcpy(data, entry->mac, sizeof(entry->mac));
	__sync_fetch_and_add(&entry->packets, 1);
	__sync_fetch_and_add(&entry->bytes, skb->len);
	return bpf_redirect(entry->ifindex, 0);
}

/* True for packets with the owner's address as the source: the owner has frozen the connection and
 * returns its packets until user space is notified. They wait here for the next owner. A host
 * without a hold device does not receive such packets. */
static __always_inline int from_owner(const void *data, const void *end,
				      const struct flow_entry *entry)
{
	const struct ethhdr *eth = data;
	const __u16 *source = (const __u16 *)eth->h_source, *owner = (const __u16 *)entry->mac;

	if (!hold_ifindex || (const void *)(eth + 1) > end)
		return 0;
	return source[0] == owner[0] && source[1] == owner[1] && source[2] == owner[2];
}

/* True if the client acknowledges data that no earlier owner has sent: the host to which the flow
 * is offered has adopted it and answers. The program detects this before user space is notified. */
static __always_inline int has_next_owner(const struct flow_entry *entry)
{
	return entry->tracked.known && (__s32)(entry->tracked.last_ack - entry->offered_at) > 0;
}

/* Counted by weight and not by frame, because the hold device segments large frames. */
static __always_inline int hold(struct flow_entry *entry, const struct segment *segment)
{
	__sync_fetch_and_add(&entry->held, segment->payload ? segment->payload : 1);
	return bpf_redirect(hold_ifindex, 0);
}
