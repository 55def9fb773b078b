/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* ICMP errors go to the owner of their flow, which needs the path's MTU. */
#pragma once

#include "rewrite.h"

/* RFC 5927 4.1: a router's error quotes a segment that is in flight. */
static __always_inline int is_under_way(const struct belief *belief, __u32 seq)
{
	return belief->known && seq - belief->last_ack <= belief->window_max;
}

/* Between two owners the error goes to this host's stack, which caches the path's MTU for all its
 * sockets; the next owner gets an error of its own from the router. */
static __always_inline int steer_error(struct __sk_buff *skb, const struct segment *segment,
				       struct slot *slot)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 state = state_of(slot);

	if (state == SLOT_LOCAL || state == SLOT_HOLD || from_owner(data, end, slot) ||
	    (state == SLOT_OFFERED && !has_heir(slot)))
		return NEXT;
	if (!is_under_way(&slot->belief, segment->seq)) {
		count(COUNT_ERRORS_REFUSED);
		return SHOT;
	}
	int verdict = send_to_owner(skb, slot, segment->key.family);

	if (verdict != SHOT)
		count(COUNT_ERRORS);
	return verdict;
}
