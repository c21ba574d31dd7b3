"""`import deep_ep` answered by uccl_ep: opt-in, reversible, and without touching any other distribution's files."""

from uccl_ep.drop_in.hook import install_as_deep_ep as install_as_deep_ep
from uccl_ep.drop_in.hook import is_installed as is_installed
from uccl_ep.drop_in.hook import uninstall_as_deep_ep as uninstall_as_deep_ep
