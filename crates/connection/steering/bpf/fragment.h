/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Fragments of known flows follow their first fragment. */
#pragma once

#include "rewrite.h"

/* Builds the key of the fragment's packet, with the identification in place of the ports. */
static __always_inline void fragment_key(const struct segment *segment, struct flow_key *key)
{
	*key = segment->key;
	key->client_port = (__u16)segment->fragment_id;
	key->service_port = segment->fragment_id >> 16;
}

/* Records the ports of the packet's later fragments. */
static __always_inline void learn_fragment(const struct segment *segment)
{
	__u32 ports = segment->key.client_port | (__u32)segment->key.service_port << 16;
	struct flow_key key;

	fragment_key(segment, &key);
	bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
}

/* Sets the ports of a later fragment; returns false if the first one has not arrived. */
static __always_inline int find_fragment(struct segment *segment)
{
	struct flow_key key;

	fragment_key(segment, &key);
	__u32 *ports = bpf_map_lookup_elem(&fragments, &key);

	if (!ports)
		return 0;
	segment->key.client_port = (__u16)*ports;
	segment->key.service_port = *ports >> 16;
	return 1;
}

/* A fragment's checksum covers other fragments, so it updates no state. Fragments are not held,
 * because user space could not assign later ones to a flow. The client retransmits dropped ones. */
static __always_inline int steer_fragment(struct __sk_buff *skb, const struct segment *segment,
					  struct flow_entry *entry)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 state = state_of(entry);
	int theirs = from_owner(data, end, entry);

	if (state == FLOW_LOCAL || (state == FLOW_LINGER && theirs))
		return NEXT;
	if (state == FLOW_HOLD || theirs || (state == FLOW_OFFERED && !has_next_owner(entry))) {
		count(COUNT_FRAGMENTS);
		return SHOT;
	}
	return send_to_owner(skb, entry, segment->key.family);
}
