/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Steering of migrated connections.
 *
 *   link ingress:  unknown flow ───────────────► stack
 *                  LOCAL, nothing waits ───────► stack
 *                  HOLD, or older frames wait ─► hold device ─► user space
 *                  OFFERED, client unserved ───► hold device ─► user space
 *                  from the owner ─────────────► hold device ─► user space
 *                  LINGER, from the owner ─────► stack, which resets it: no host owns it
 *                  OFFERED, client served ─────► rewritten MAC, out of the link
 *                  REDIRECT, nothing waits ────► rewritten MAC, out of the link
 *   link XDP:      REDIRECT, nothing waits ────► rewritten MAC, out of the link
 *   hold ingress:  (user space writes a held frame back)
 *                  LOCAL ──► stack      REDIRECT ──► rewritten MAC, out of the link
 *                  HOLD, OFFERED ──► hold device again
 *
 * Fragments and ICMP errors of a flow take the same paths, but are never held: see fragment.h and
 * error.h.
 * A frame that has been redirected HOPS_MAX times is dropped.
 *
 * A SYN for a flow with another owner is dropped once. The client sends it again after a second: the owner has
 * told by then that the last connection is over, or still has it, and takes the SYN for a challenge (RFC 5961
 * §4). An owner without a socket would refuse the connection.
 *
 * A frame that arrives while older ones of its flow wait is held behind them, in every state. A
 * flow's frames therefore reach the new owner in the order of their arrival.
 */
#include "error.h"
#include "fragment.h"

/* Number of bytes pulled into the linear part if headers lie outside it. */
#define PULL_BYTES 512

static __always_inline struct flow_entry *entry_of(struct flow_key *key)
{
	__u32 *index;

	if (key->family == 4) {
		struct ipv4_key ipv4 = {
			.client = *(__u32 *)key->client,
			.service = *(__u32 *)key->service,
			.ports = key->client_port | (__u32)key->service_port << 16,
		};

		index = bpf_map_lookup_elem(&flows_ipv4, &ipv4);
		/* Keeps two calls: the verifier inlines a lookup only in one known map. */
		asm volatile("" : "+r"(index));
	} else {
		index = bpf_map_lookup_elem(&flows_ipv6, key);
	}
	return index ? bpf_map_lookup_elem(&slots, index) : 0;
}

static __always_inline int parsed(struct __sk_buff *skb, struct segment *segment)
{
	int kind = parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);

	/* Headers outside the linear part are pulled in once. */
	if (kind != PACKET_CUT || skb->data_end - skb->data >= skb->len ||
	    bpf_skb_pull_data(skb, skb->len < PULL_BYTES ? skb->len : PULL_BYTES))
		return kind;
	return parse((void *)(long)skb->data, (void *)(long)skb->data_end, segment);
}

/* True for a SYN of a new connection, from a client port that had another one. */
static __always_inline int is_new_connection(const struct segment *segment)
{
	return (segment->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

static __always_inline int steer_segment(struct __sk_buff *skb, const struct segment *segment,
					 struct flow_entry *entry)
{
	__u32 state = state_of(entry);
	int theirs;

	if (state != FLOW_LOCAL && is_new_connection(segment) && is_intact_skb(skb, segment)) {
		if (state == FLOW_LINGER) {
			entry->tracked.known = 0;
			__sync_val_compare_and_swap(&entry->state, FLOW_LINGER, FLOW_LOCAL);
			return NEXT;
		}
		if (!entry->has_syn || entry->syn != segment->seq) {
			entry->syn = segment->seq;
			entry->has_syn = 1;
			count(COUNT_SYNS);
			return SHOT;
		}
	}
	note(skb, segment, entry);
	if (state == FLOW_HOLD || entry->held != entry->replayed ||
	    (state == FLOW_OFFERED && !has_next_owner(entry)))
		return hold(entry, segment);
	if (state == FLOW_LOCAL)
		return NEXT;
	theirs = from_owner((void *)(long)skb->data, (void *)(long)skb->data_end, entry);
	if (theirs)
		/* No host has a socket any more: this host's stack resets the connection. */
		return state == FLOW_LINGER ? NEXT : hold(entry, segment);
	return send_to_owner(skb, entry, segment->key.family);
}

SEC("classifier")
int link_ingress(struct __sk_buff *skb)
{
	struct segment segment;
	int kind = parsed(skb, &segment);

	if (kind == PACKET_LONG) {
		count(COUNT_EXTENSIONS);
		return SHOT;
	}
	if (kind < 0 || (kind == PACKET_LATER && !find_fragment(&segment)))
		return NEXT;
	struct flow_entry *entry = entry_of(&segment.key);
	if (!entry)
		return NEXT;
	switch (kind) {
	case PACKET_WHOLE:
		return steer_segment(skb, &segment, entry);
	case PACKET_ERROR:
		return steer_error(skb, &segment, entry);
	case PACKET_FIRST:
		learn_fragment(&segment);
	}
	return steer_fragment(skb, &segment, entry);
}

SEC("classifier")
int hold_ingress(struct __sk_buff *skb)
{
	struct segment segment;

	if (parsed(skb, &segment) != PACKET_WHOLE)
		return NEXT;
	struct flow_entry *entry = entry_of(&segment.key);
	if (!entry)
		return NEXT;
	__u32 state = state_of(entry);
	/* The frame may have arrived before the connection was tracked. */
	note(skb, &segment, entry);
	/* User space counts it as replayed after this program has returned. */
	switch (state) {
	case FLOW_LOCAL:
		return NEXT;
	case FLOW_HOLD: /* set after the frame was written back: it waits again */
	case FLOW_OFFERED:
		return hold(entry, &segment);
	default:
		return send_to_owner(skb, entry, segment.key.family);
	}
}

/* The common case, before the kernel allocates an skb: a flow with an owner and without waiting
 * frames. All other frames pass to link_ingress. */
SEC("xdp")
int link_xdp(struct xdp_md *frame)
{
	void *data = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;
	struct segment segment;

	if (parse(data, end, &segment) != PACKET_WHOLE || is_new_connection(&segment))
		return XDP_PASS;
	struct flow_entry *entry = entry_of(&segment.key);
	if (!entry)
		return XDP_PASS;
	__u32 state = state_of(entry);
	if (state != FLOW_REDIRECT || entry->held != entry->replayed ||
	    from_owner(data, end, entry))
		return XDP_PASS;
	__u32 update = evaluate(&entry->tracked, &segment);
	if (update & UPDATE_OLD)
		return XDP_PASS;
	if (update) {
		if (is_intact_frame(frame, &segment))
			apply(&entry->tracked, &segment, update);
		else
			count(COUNT_CORRUPT);
	}
	/* parse() has checked both headers; the verifier needs the check again. */
	struct ethhdr *eth = data;
	struct iphdr *v4 = (void *)(eth + 1);
	struct ipv6hdr *v6 = (void *)(eth + 1);
	if ((void *)(v4 + 1) > end)
		return XDP_PASS;
	if (segment.key.family == 4) {
		if (lower_ipv4(v4, end))
			return XDP_PASS;
	} else {
		if ((void *)(v6 + 1) > end || !next_hops(v6->hop_limit))
			return XDP_PASS;
		v6->hop_limit = next_hops(v6->hop_limit);
	}
	__builtin_memcpy(data, entry->mac, sizeof(entry->mac));
	__sync_fetch_and_add(&entry->packets, 1);
	__sync_fetch_and_add(&entry->bytes, end - data);
	return XDP_TX;
}

SEC("sockops")
int restore_window(struct bpf_sock_ops *ops)
{
	__u32 port, address, v4, v6;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
	port = bpf_ntohl(ops->remote_port) & 0xffff;
	struct window *window = bpf_map_lookup_elem(&windows, &port);
	if (!window || !window->segments)
		return 1;
	v4 = ops->remote_ip4;
	v6 = ops->remote_ip6[3];
	/* Two loads instead of one at a computed offset: the verifier requires constant ones. */
	asm volatile("" : "+r"(v4), "+r"(v6));
	address = ops->family == 10 /* AF_INET6 */ ? v6 : v4;
	if (window->address != address)
		return 1;
	int segments = window->segments;
	window->segments = 0;
	bpf_setsockopt(ops, IPPROTO_TCP, TCP_BPF_IW, &segments, sizeof(segments));
	return 1;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
