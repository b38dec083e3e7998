/* SnapKV's numbers, for the policies that are defined over it. */
#ifndef KVE_POLICIES_ATTENTION_H
#define KVE_POLICIES_ATTENTION_H

enum { KVE_SNAPKV_WINDOW = 64, KVE_SNAPKV_POOL = 5 };

#endif
