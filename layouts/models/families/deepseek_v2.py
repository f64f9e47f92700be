"""DeepSeek V2: the shapes of V3, routed by softmax."""

from layouts.models.families import deepseek
from layouts.models.forms import unavailable

read = deepseek.read
forms = unavailable
