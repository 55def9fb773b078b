/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The name of a flow in maps. An assertion in src/table.rs pins the layout. */
#pragma once

#include <linux/types.h>

/* Addresses in packet order; IPv4 in the first four bytes, the rest zero. */
struct flow_key {
	__u8 client[16];
	__u8 service[16];
	__be16 client_port;
	__be16 service_port;
	__u32 family;     /* 4 or 6 */
};
