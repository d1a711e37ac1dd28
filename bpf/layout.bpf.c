// SPDX-License-Identifier: GPL-2.0
/*
 * One variable of each structure that BPF programs and user space share, so
 * that the BTF of this object describes all of them. It is never loaded: a
 * test compares the copies in Rust with it, field by field.
 */
#include "kernel.h"
#include "quell.h"
#include "recorder.h"
#include "keyframe.h"
#include "domains.h"

#define SHARED(name) struct name shared_##name

SHARED(slot);
SHARED(core);
SHARED(core_order);
SHARED(core_set);
SHARED(task);
SHARED(task_time);
SHARED(histograms);
SHARED(control);
SHARED(totals);
SHARED(identity);
SHARED(event);
SHARED(watch_args);

SHARED(record);
SHARED(record_thread);
SHARED(record_short);
SHARED(record_load);
SHARED(record_allowed);
SHARED(own);

SHARED(keyframe_core);
SHARED(keyframe_thread);

SHARED(domain_record);
